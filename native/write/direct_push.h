/* Pushing straight to a store of this machine, by whom it allows to: as a server would take the frames, without one. */
#ifndef BODHI_DIRECT_PUSH_H
#define BODHI_DIRECT_PUSH_H

#include "bodhi.h"

typedef struct straight straight;

typedef struct {
    const char *store; /* its directory, which is made if it is not there */
    int64_t quota;     /* as bodhi_store_set_quota() */
    const char *dataset;
    void *generation; /* of slices; the number of the launch is written into it */
    size_t generation_bytes;
    const char *identity; /* "": it does not say */
    int32_t durable;
    int64_t batch_bytes;     /* after so many, or a second, what was pushed is shown and acknowledged */
    bodhi_push_facts *facts; /* to be kept, until it is closed */
} straight_options;

/* Errors: as bodhi_open(), bodhi_dataset_open() and bodhi_writer_open(), and CONFLICT. */
BODHI_CHECKED int straight_open(const straight_options *options, straight **opened);

/* Push a slice. Errors: as bodhi_append() and bodhi_flush(). */
BODHI_CHECKED int straight_push(straight *s, const bodhi_frame *frame);
BODHI_CHECKED int straight_flush(straight *s);

/* Close without a flush that anybody hears of. */
void straight_close(straight *s);

#endif
