/* The thread that writes what is pushed to one dataset, so that the event loop never waits for a disk. It is given
 * tasks, carries them out in their order, and gives back those that somebody waits for. */
#ifndef BODHI_INGEST_H
#define BODHI_INGEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bodhi.h"
#include "net/wire.h"

typedef struct ingest ingest;

enum task_verb {
    TASK_FRAME,  /* append it; comes back with the next FLUSH */
    TASK_FLUSH,  /* make what was appended visible, and say of each frame what became of it */
    TASK_KEPT,   /* which of the frames are stored just so */
    TASK_RELEASE /* let go of the segment: nobody pushes any more */
};

typedef struct task {
    struct task *next;
    enum task_verb verb;
    uint64_t client;  /* who gave it */
    bool durable;     /* FRAME: will be flushed so; FLUSH, KEPT: only what is on disk counts */
    int32_t status;   /* of it when it comes back; of a FRAME: its acknowledgement, true only of what is stored */
    char *reason;     /* of a FRAME that is refused for good, for want of room or while somebody stages, as text; NULL:
                         nobody knows */
    uint32_t segment; /* of a FRAME that was there: in which, as an ordinal */
    bodhi_frame frame;
    unsigned char *body; /* FRAME: its bytes; KEPT: `n` questions, on coming back `n` answers */
    size_t capacity, n;
    struct task *batch; /* FLUSH: its frames */
} task;

/* An ingest of `dataset`, which outlives it; `wake` is a non-blocking descriptor that gets a byte when something came
 * back or the backlog has become small. NULL: no memory or no thread for it. */
ingest *ingest_start(bodhi_dataset *dataset, int wake);

/* A task of this verb to be filled in and given; NULL: memory is out. */
task *task_new(enum task_verb verb, uint64_t client, bool durable);

/* Take the body of the parser's message along; the parser gets a buffer that is not needed any more, if there is one.
 */
void ingest_take_body(ingest *in, task *t, wire_parser *parser);

void ingest_submit(ingest *in, task *t);

/* Whether so much waits to be written that no more should be received. */
bool ingest_is_behind(ingest *in);

/* Bytes of memory that it holds: of frames that wait, and of buffers kept for the next ones; these can be given up. */
size_t ingest_held(ingest *in);
void ingest_trim(ingest *in);

/* What came back since, in order, linked by `next`; each to be freed. */
task *ingest_take_done(ingest *in);

void task_free(task *t);

/* Carry out what is left, then end the thread; what comes back can still be taken. Once more: nothing. */
void ingest_finish(ingest *in);

/* After ingest_finish(). NULL is allowed. */
void ingest_free(ingest *in);

#endif
