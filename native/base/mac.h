/* Message authentication: what only two who have the same key can say. Of OpenSSL's libcrypto, which is looked for when
 * it is first needed, so that nothing else needs it.
 *
 * A session's messages each have a tag: Poly1305 (RFC 8439) under a key of its own, which is HMAC-SHA256 of who sends
 * the message and its running number. */
#pragma once

#include <stdbool.h>

#include "bodhi.h"

enum { MAC_KEY = 32, MAC_BYTES = 16, HMAC_BYTES = 32 };

/* The messages of one side of a session; all zero: they are not authenticated. */
typedef struct {
    bool on;
    uint8_t sender;
    uint8_t key[MAC_KEY];
    uint64_t number; /* of the next message */
} mac_stream;

typedef struct {
    const void *data;
    size_t size;
} mac_part;

/* Whether there is a libcrypto; SYSTEM: none of use, and the message says what to install. */
BODHI_CHECKED int mac_find(void);

/* HMAC-SHA256 (RFC 2104) of all parts under a key. Errors: as mac_find; MEMORY. */
BODHI_CHECKED int mac_hmac(const void *key, size_t key_bytes, const mac_part *parts, int n, uint8_t out[HMAC_BYTES]);

/* Compare in a time that does not tell where they differ. */
bool mac_is_same(const uint8_t *left, const uint8_t *right, size_t size);

void mac_begin(mac_stream *stream, const uint8_t key[MAC_KEY], bool client_sends);

/* The tag of the next message, of these parts. Without memory (or libcrypto): zeros, which the other side refuses. */
void mac_next(mac_stream *stream, const mac_part *parts, int n, uint8_t tag[MAC_BYTES]);

/* Whether `tag` is the one of the next message; its number is used up. Takes as long whether it is or not. */
bool mac_is_next(mac_stream *stream, const mac_part *parts, int n, const uint8_t tag[MAC_BYTES]);
