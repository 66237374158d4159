/* Connecting to a server in a thread of its own, so that one that does not answer keeps nobody from pushing to others:
 * names are resolved, the dataset is opened, and what was sent over an older connection is asked about. */
#ifndef BODHI_CONNECT_ASYNC_H
#define BODHI_CONNECT_ASYNC_H

#include "net/link.h"

typedef struct dialling dialling;

/* What is copied but for the address, which outlives the link, and `asked`, which is taken over (malloc's). */
typedef struct {
    char *address;
    const uint8_t *key; /* NULL: none */
    size_t key_bytes;
    uint32_t flags;
    const uint8_t *token;
    const char *name;
    const void *generation;
    size_t generation_bytes;
    const char *identity;
    unsigned char *asked; /* questions as in a KEEP */
    size_t n_asked;
    int64_t timeout_ms; /* for all of it */
} dial_request;

/* Begin; NULL: no memory or no thread for it. */
dialling *dial_begin(const dial_request *request);

/* A descriptor that can be read when it has ended. */
int dial_descriptor(const dialling *d);
bool dial_has_ended(const dialling *d);

/* Take what came of it, which has ended, and free it: the link, and an answer as in KEPT for each question (NULL: there
 * was none), to be freed. Errors: as link_dial and link_open; the link is then closed. */
BODHI_CHECKED int dial_end(dialling *d, wire_link *link, unsigned char **kept);

/* Nobody wants it any more: it ends by itself, soon. */
void dial_abandon(dialling *d);

/* How many threads dial in this process, those of abandoned ones among them: with none, nobody but its callers is in
 * the library. */
int dial_running(void);

#endif
