/* Message authentication; see mac.h.
 *
 * Poly1305 is libsodium's, which is compiled in; of long messages that of OpenSSL, where the system has it: its vector
 * instructions take a third of the time. It is looked for when the first long message comes, so that nothing needs it.
 */
#include "base/mac.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#include "base/hmac.h"
#include "sodium/crypto_verify_16.h"
#include "sodium/onetimeauth_poly1305.h"

enum {
    LONG = 16 << 10, /* bytes of a message */
    STRIDE = 128     /* eight blocks of Poly1305: OpenSSL takes twice as long over what is not a multiple of them */
};

/* Which of libsodium's is the fastest here; see native/meson.build. */
extern crypto_onetimeauth_poly1305_implementation BODHI_POLY1305;

bool mac_portable;

/* --- OpenSSL's --------------------------------------------------------------------------------------------------- */

/* Of libcrypto.so.3; all are there, or none is used. */
static struct {
    void *(*fetch)(void *, const char *, const char *);
    void *(*new_state)(void *);
    void (*free_state)(void *);
    int (*init)(void *, const unsigned char *, size_t, const void *);
    int (*update)(void *, const unsigned char *, size_t);
    int (*final)(void *, unsigned char *, size_t *, size_t);
    void *poly1305;
} openssl;

static pthread_once_t looked = PTHREAD_ONCE_INIT;

static bool find_function(void *library, const char *name, void *function) {
    void *found = dlsym(library, name);
    memcpy(function, &found, sizeof found);
    return found != NULL;
}

static void look_for_openssl(void) {
    void *library = dlopen("libcrypto.so.3", RTLD_NOW | RTLD_LOCAL);
    if (library != NULL && find_function(library, "EVP_MAC_fetch", &openssl.fetch) &&
        find_function(library, "EVP_MAC_CTX_new", &openssl.new_state) &&
        find_function(library, "EVP_MAC_CTX_free", &openssl.free_state) &&
        find_function(library, "EVP_MAC_init", &openssl.init) &&
        find_function(library, "EVP_MAC_update", &openssl.update) &&
        find_function(library, "EVP_MAC_final", &openssl.final)) {
        openssl.poly1305 = openssl.fetch(NULL, "POLY1305", NULL);
    }
}

/* What of a message waits for the rest of a stride. */
typedef struct {
    void *state;
    unsigned char bytes[STRIDE];
    size_t n;
} strides;

static bool add_part(strides *s, const unsigned char *data, size_t size) {
    bool done = true;
    if (s->n > 0) {
        size_t some = size < STRIDE - s->n ? size : STRIDE - s->n;
        memcpy(s->bytes + s->n, data, some);
        s->n += some;
        data += some;
        size -= some;
        if (s->n < STRIDE) {
            return true;
        }
        done = openssl.update(s->state, s->bytes, STRIDE) == 1;
    }
    size_t whole = size / STRIDE * STRIDE;
    s->n = size - whole;
    if (s->n > 0) {
        memcpy(s->bytes, data + whole, s->n);
    }
    return done && (whole == 0 || openssl.update(s->state, data, whole) == 1);
}

static bool tag_by_openssl(const uint8_t once[HMAC_BYTES], const mac_part *parts, int n, uint8_t tag[MAC_BYTES]) {
    size_t written = 0;
    (void)pthread_once(&looked, look_for_openssl);
    strides s = {.state = openssl.poly1305 == NULL ? NULL : openssl.new_state(openssl.poly1305)};
    bool done = s.state != NULL && openssl.init(s.state, once, HMAC_BYTES, NULL) == 1;
    for (int i = 0; done && i < n; i++) {
        done = parts[i].size == 0 || add_part(&s, parts[i].data, parts[i].size);
    }
    done = done && (s.n == 0 || openssl.update(s.state, s.bytes, s.n) == 1) &&
           openssl.final(s.state, tag, &written, MAC_BYTES) == 1 && written == MAC_BYTES;
    if (s.state != NULL) {
        openssl.free_state(s.state);
    }
    return done;
}

/* --- libsodium's ------------------------------------------------------------------------------------------------- */

static void tag_by_sodium(const uint8_t once[HMAC_BYTES], const mac_part *parts, int n, uint8_t tag[MAC_BYTES]) {
    crypto_onetimeauth_poly1305_state state;
    (void)BODHI_POLY1305.onetimeauth_init(&state, once);
    for (int i = 0; i < n; i++) {
        if (parts[i].size > 0) {
            (void)BODHI_POLY1305.onetimeauth_update(&state, parts[i].data, parts[i].size);
        }
    }
    (void)BODHI_POLY1305.onetimeauth_final(&state, tag);
}

/* --- Messages ---------------------------------------------------------------------------------------------------- */

void mac_begin(mac_stream *stream, const uint8_t key[MAC_KEY], bool client_sends) {
    *stream = (mac_stream){.on = true, .sender = client_sends ? 'c' : 's'};
    memcpy(stream->key, key, MAC_KEY);
}

void mac_next(mac_stream *stream, const mac_part *parts, int n, uint8_t tag[MAC_BYTES]) {
    uint8_t named[9] = {stream->sender};
    uint8_t once[HMAC_BYTES];
    size_t size = 0;
    for (int i = 0; i < 8; i++) {
        named[1 + i] = (uint8_t)(stream->number >> 8 * i);
    }
    for (int i = 0; i < n; i++) {
        size += parts[i].size;
    }
    stream->number++;
    bodhi_hmac(stream->key, MAC_KEY, named, sizeof named, once);
    if (size < LONG || mac_portable || !tag_by_openssl(once, parts, n, tag)) {
        tag_by_sodium(once, parts, n, tag);
    }
}

bool mac_is_next(mac_stream *stream, const mac_part *parts, int n, const uint8_t tag[MAC_BYTES]) {
    uint8_t wanted[MAC_BYTES];
    mac_next(stream, parts, n, wanted);
    return crypto_verify_16(wanted, tag) == 0;
}
