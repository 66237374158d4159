/* The thread that writes what is pushed to one dataset, so that the event loop never waits for a disk. */
#pragma once

#include <stdatomic.h>

#include "bodhi.h"
#include "net/wire.h"

typedef struct ingest ingest;

enum task_verb {
    TASK_FRAME,  /* append it; comes back when the next FLUSH does, before it */
    TASK_FLUSH,  /* make what was appended visible, and say of each frame what became of it */
    TASK_RELEASE /* let go of the segment: nobody pushes any more */
};

typedef struct task {
    struct task *next;
    enum task_verb verb;
    uint64_t client;  /* who gave it */
    bool durable;     /* FRAME: will be flushed so; FLUSH: only what is on disk counts */
    int32_t status;   /* of it when it comes back; of a FRAME: its acknowledgement, true only of what is stored */
    char *reason;     /* of a FRAME that is refused for good, for want of room or while somebody stages, as text; NULL:
                         nobody knows */
    uint32_t segment; /* of a FRAME that was there: in which, as an ordinal */
    bodhi_frame frame;
    unsigned char *body; /* FRAME: its bytes */
    size_t n;            /* how many these are */
} task;

/* `wake` gets a byte when a task is done; `backlog` counts the bytes that wait. NULL: no memory, or no thread. */
ingest *ingest_start(bodhi_dataset *dataset, int wake, atomic_size_t *backlog);

/* A task of this verb to be filled in and given; NULL: memory is out. */
task *task_new(enum task_verb verb, uint64_t client, bool durable);

void ingest_submit(ingest *in, task *t);

/* What came back since, in order, linked by `next`, to be freed. */
task *ingest_take_done(ingest *in);

void tasks_free(task *list);

/* Carry out what is left, then end the thread; what comes back can still be taken. What is given then is forgotten. */
void ingest_finish(ingest *in);

/* Finish, and free. NULL is allowed. */
void ingest_free(ingest *in);
