/* Connecting to a server in a thread of its own: one that does not answer keeps nobody from pushing to others. */
#ifndef BODHI_CONNECT_ASYNC_H
#define BODHI_CONNECT_ASYNC_H

#include "net/link.h"

typedef struct dialling dialling;

/* What is copied but for the address, which outlives the link. */
typedef struct {
    char *address;
    uint8_t key[KEY_MOST];
    size_t key_bytes; /* 0: none */
    wire_open open;
    int64_t timeout_ms; /* for all of it */
} dial_request;

/* Begin; NULL: no memory or no thread for it. */
dialling *dial_begin(const dial_request *request);

/* A descriptor that can be read when it has ended. */
int dial_descriptor(const dialling *d);
bool dial_has_ended(const dialling *d);

/* Take the link. Errors: as link_dial and link_open. */
BODHI_CHECKED int dial_end(dialling *d, wire_link *link);

/* Nobody wants it any more: it ends by itself, soon. */
void dial_abandon(dialling *d);

/* How many threads dial in this process, those of abandoned ones among them. */
int dial_running(void);

#endif
