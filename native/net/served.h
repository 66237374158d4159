/* A dataset that a server has open, asked about and read over a link by one thread and its readers'. */
#pragma once

#include <pthread.h>

#include "net/link.h"
#include "read/reader.h"

typedef struct grants grants;

typedef struct served_dataset {
    wire_link link;
    int64_t timeout_ms;
    wire_opened opened;      /* what the server said of it then */
    bool remote;             /* on another machine: bytes come over the link; set before it is opened */
    grants *turn;            /* whose turn it is with the disk; NULL: no reader's of this connection */
    pthread_mutex_t talking; /* over the link: readers' threads bring bytes over one to another machine */
} served_dataset;

/* Of all functions: a link that fails is closed, so that no late answer is taken for another. As link_ask. */

/* OPEN a dataset for reading over a link that was dialled. */
BODHI_CHECKED int served_open(served_dataset *d, const char *name, const void *generation, size_t generation_bytes);

/* Ask a question about a name; *body is the answer, of *bytes, to be freed. */
BODHI_CHECKED int served_ask(served_dataset *d, enum wire_verb verb, const wire_question *question, const char *name,
                             unsigned char **body, size_t *bytes);

/* As bodhi_reader_open(). Frames whose places the server does not tell are misses. */
BODHI_CHECKED int served_reader_open(served_dataset *d, const int64_t *numbers, int64_t n,
                                     const bodhi_read_options *options, bodhi_reader **reader);

/* Fill a list of bytes of segments over a link to another machine, which after an error is of no more use. Errors: as
 * link_answer. */
BODHI_CHECKED int extents_fetch(wire_link *link, int64_t timeout_ms, const segment_key *segments, const uint8_t *kinds,
                                fetched *list, size_t n);

/* Close the link; what was granted can be read on. */
void served_close(served_dataset *d);
