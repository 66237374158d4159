/* SHA-256 (FIPS 180-4) and HMAC (RFC 2104), for the client's side of being admitted by a server. */
#ifndef BODHI_HMAC_H
#define BODHI_HMAC_H

#include <stddef.h>
#include <stdint.h>

enum { HMAC_BYTES = 32 };

/* The HMAC-SHA256 of `size` bytes at `data` under a key. */
void bodhi_hmac(const void *key, size_t key_bytes, const void *data, size_t size, uint8_t out[HMAC_BYTES]);

#endif
