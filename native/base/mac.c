/* Message authentication; see mac.h. */
#include "base/mac.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/status.h"

#define LIBRARY "libcrypto.so.3"

enum {
    UTF8 = 4,              /* OSSL_PARAM_UTF8_STRING */
    NO_ATEXIT = 0x00080000 /* OPENSSL_INIT_NO_ATEXIT: threads may be at work while a program ends */
};

/* OSSL_PARAM of OpenSSL 3. */
typedef struct {
    const char *name;
    unsigned type;
    const void *data;
    size_t size, returned;
} parameter;

static struct {
    int (*start)(uint64_t options, const void *settings);
    void *(*fetch)(void *context, const char *algorithm, const char *properties);
    void *(*new_state)(void *algorithm);
    void (*free_state)(void *state);
    int (*init)(void *state, const unsigned char *key, size_t size, const parameter *parameters);
    int (*update)(void *state, const unsigned char *data, size_t size);
    int (*final)(void *state, unsigned char *out, size_t *written, size_t size);
    int (*compare)(const void *left, const void *right, size_t size);
    void *poly1305, *hmac;
    char missing[256]; /* "": all is there */
} openssl;

/* --- The library ------------------------------------------------------------------------------------------------- */

static bool find_functions(void *library) {
    const struct {
        const char *name;
        void *function;
    } functions[] = {{"OPENSSL_init_crypto", &openssl.start}, {"EVP_MAC_fetch", &openssl.fetch},
                     {"EVP_MAC_CTX_new", &openssl.new_state}, {"EVP_MAC_CTX_free", &openssl.free_state},
                     {"EVP_MAC_init", &openssl.init},         {"EVP_MAC_update", &openssl.update},
                     {"EVP_MAC_final", &openssl.final},       {"CRYPTO_memcmp", &openssl.compare}};
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *symbol = dlsym(library, functions[i].name);
        if (symbol == NULL) {
            return false;
        }
        memcpy(functions[i].function, &symbol, sizeof symbol);
    }
    return true;
}

static void look_for_library(void) {
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    const char *reason = library == NULL ? dlerror() : NULL;
    if (library != NULL && find_functions(library) && openssl.start(NO_ATEXIT, NULL) == 1) {
        openssl.poly1305 = openssl.fetch(NULL, "POLY1305", NULL);
        openssl.hmac = openssl.fetch(NULL, "HMAC", NULL);
    }
    if (openssl.poly1305 == NULL || openssl.hmac == NULL) {
        (void)snprintf(openssl.missing, sizeof openssl.missing, "%s",
                       reason != NULL ? reason : LIBRARY " has no Poly1305 or HMAC here");
    }
}

int mac_find(void) {
    static pthread_once_t looked = PTHREAD_ONCE_INIT;
    (void)pthread_once(&looked, look_for_library);
    if (openssl.missing[0] == '\0') {
        return BODHI_OK;
    }
    return bodhi_fail(
        BODHI_ERROR_SYSTEM,
        "servers and clients of other machines need OpenSSL's libcrypto, version 3 (%s); install it, such "
        "as Debian's package libssl3",
        openssl.missing);
}

/* --- Computing --------------------------------------------------------------------------------------------------- */

static bool compute(void *algorithm, const parameter *parameters, const void *key, size_t key_bytes,
                    const mac_part *parts, int n, uint8_t *out, size_t size) {
    size_t written = 0;
    void *state = openssl.new_state(algorithm);
    bool done = state != NULL && openssl.init(state, key, key_bytes, parameters) == 1;
    for (int i = 0; done && i < n; i++) {
        done = parts[i].size == 0 || openssl.update(state, parts[i].data, parts[i].size) == 1;
    }
    done = done && openssl.final(state, out, &written, size) == 1 && written == size;
    openssl.free_state(state);
    return done;
}

int mac_hmac(const void *key, size_t key_bytes, const mac_part *parts, int n, uint8_t out[HMAC_BYTES]) {
    static const parameter sha256[] = {{"digest", UTF8, "SHA256", 6, 0}, {NULL, 0, NULL, 0, 0}};
    int status = mac_find();
    if (status != BODHI_OK) {
        return status;
    }
    return compute(openssl.hmac, sha256, key, key_bytes, parts, n, out, HMAC_BYTES) ? BODHI_OK : bodhi_fail_memory();
}

bool mac_is_same(const uint8_t *left, const uint8_t *right, size_t size) {
    return mac_find() == BODHI_OK && openssl.compare(left, right, size) == 0;
}

/* --- Messages ---------------------------------------------------------------------------------------------------- */

void mac_begin(mac_stream *stream, const uint8_t key[MAC_KEY], bool client_sends) {
    *stream = (mac_stream){.on = true, .sender = client_sends ? 'c' : 's'};
    memcpy(stream->key, key, MAC_KEY);
}

static bool tag_next(mac_stream *stream, const mac_part *parts, int n, uint8_t tag[MAC_BYTES]) {
    uint8_t named[9] = {stream->sender};
    const mac_part name = {named, sizeof named};
    uint8_t once[HMAC_BYTES];
    put64(named + 1, stream->number++);
    bool done = mac_hmac(stream->key, MAC_KEY, &name, 1, once) == BODHI_OK &&
                compute(openssl.poly1305, NULL, once, sizeof once, parts, n, tag, MAC_BYTES);
    explicit_bzero(once, sizeof once);
    return done;
}

void mac_next(mac_stream *stream, const mac_part *parts, int n, uint8_t tag[MAC_BYTES]) {
    if (!tag_next(stream, parts, n, tag)) {
        memset(tag, 0, MAC_BYTES);
    }
}

bool mac_is_next(mac_stream *stream, const mac_part *parts, int n, const uint8_t tag[MAC_BYTES]) {
    uint8_t functions[MAC_BYTES];
    return tag_next(stream, parts, n, functions) && mac_is_same(functions, tag, MAC_BYTES);
}
