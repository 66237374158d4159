/* Message authentication: what only two who have the same session's key can say of the messages that one of them sends,
 * each by its running number. Poly1305 (RFC 8439) under a key of its own for each message: HMAC-SHA256 of who sends it
 * and its number. */
#ifndef BODHI_MAC_H
#define BODHI_MAC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MAC_KEY = 32, MAC_BYTES = 16 };

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

/* Do without the system's OpenSSL, for tests. */
extern bool mac_portable;

void mac_begin(mac_stream *stream, const uint8_t key[MAC_KEY], bool client_sends);

/* The tag of the next message, which has these parts; its number is used up. */
void mac_next(mac_stream *stream, const mac_part *parts, int n, uint8_t tag[MAC_BYTES]);

/* Whether `tag` is the one of the next message; its number is used up. Takes as long whether it is or not. */
bool mac_is_next(mac_stream *stream, const mac_part *parts, int n, const uint8_t tag[MAC_BYTES]);

#endif
