/* SHA-256 and HMAC; see hmac.h. */
#include "base/hmac.h"

#include <string.h>

enum { BLOCK = 64 };

typedef struct {
    uint32_t state[8];
    uint64_t bytes;
    uint8_t block[BLOCK];
} sha256;

/* The first 32 bits of the fractional parts of the cube roots of the first 64 primes (FIPS 180-4, 4.2.2). */
static const uint32_t constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotate(uint32_t x, int n) {
    return x >> n | x << (32 - n);
}

static void compress(sha256 *h) {
    uint32_t w[64];
    uint32_t v[8];
    for (int i = 0; i < 16; i++) {
        const uint8_t *at = h->block + (size_t)i * 4;
        w[i] = (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
    }
    for (int i = 16; i < 64; i++) {
        uint32_t s0 = rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ w[i - 15] >> 3;
        uint32_t s1 = rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ w[i - 2] >> 10;
        w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    memcpy(v, h->state, sizeof v);
    for (int i = 0; i < 64; i++) {
        uint32_t s1 = rotate(v[4], 6) ^ rotate(v[4], 11) ^ rotate(v[4], 25);
        uint32_t t1 = v[7] + s1 + ((v[4] & v[5]) ^ (~v[4] & v[6])) + constants[i] + w[i];
        uint32_t s0 = rotate(v[0], 2) ^ rotate(v[0], 13) ^ rotate(v[0], 22);
        uint32_t t2 = s0 + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += t1;
        v[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++) {
        h->state[i] += v[i];
    }
}

static sha256 begin(void) {
    return (sha256){
        .state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19}};
}

static void add(sha256 *h, const void *data, size_t size) {
    const uint8_t *bytes = data;
    for (size_t i = 0; i < size; i++) {
        h->block[h->bytes++ % BLOCK] = bytes[i];
        if (h->bytes % BLOCK == 0) {
            compress(h);
        }
    }
}

static void end(sha256 *h, uint8_t out[HMAC_BYTES]) {
    uint64_t bits = h->bytes * 8;
    uint8_t length[8];
    for (int i = 0; i < 8; i++) {
        length[i] = (uint8_t)(bits >> (56 - 8 * i));
    }
    add(h, "\x80", 1);
    while (h->bytes % BLOCK != BLOCK - 8) {
        add(h, "", 1);
    }
    add(h, length, sizeof length);
    for (int i = 0; i < HMAC_BYTES; i++) {
        out[i] = (uint8_t)(h->state[i / 4] >> (24 - 8 * (i % 4)));
    }
}

/* The hash of the key, padded and combined with `pad`, and of the data. */
static void keyed(const uint8_t key[BLOCK], uint8_t pad, const void *data, size_t size, uint8_t out[HMAC_BYTES]) {
    uint8_t padded[BLOCK];
    sha256 h = begin();
    for (int i = 0; i < BLOCK; i++) {
        padded[i] = key[i] ^ pad;
    }
    add(&h, padded, BLOCK);
    add(&h, data, size);
    end(&h, out);
}

void bodhi_hmac(const void *key, size_t key_bytes, const void *data, size_t size, uint8_t out[HMAC_BYTES]) {
    uint8_t short_key[BLOCK] = {0};
    uint8_t inner[HMAC_BYTES];
    if (key_bytes > BLOCK) {
        sha256 h = begin();
        add(&h, key, key_bytes);
        end(&h, short_key);
    } else if (key_bytes > 0) {
        memcpy(short_key, key, key_bytes);
    }
    keyed(short_key, 0x36, data, size, inner);
    keyed(short_key, 0x5c, inner, sizeof inner, out);
}
