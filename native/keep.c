/* The thread that writes for the event loop; see keep.h. */
#include "keep.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "answer.h"
#include "dataset.h"
#include "io.h"
#include "status.h"

enum {
    BACKLOG_BYTES = 64 << 20, /* as much as one pusher has in flight by default */
    START_BYTES = 2 << 20,    /* the disk begins to write while more is received */
    MAX_SPARE = 64,           /* buffers kept for the next frames: fresh memory costs as much as writing it */
    SPARE_BYTES = 32 << 20
};

typedef struct {
    unsigned char *data;
    size_t capacity;
} buffer;

typedef struct {
    task *first, *last;
} queue;

struct keeper {
    bodhi_dataset *dataset;
    int wake;
    pthread_t thread;
    atomic_size_t backlog; /* bytes of frames that wait */

    pthread_mutex_t mutex; /* over these */
    pthread_cond_t given;
    queue todo, done;
    bool ending;
    buffer spare[MAX_SPARE];
    int n_spare;
    size_t spare_bytes;

    /* The thread's own. */
    bodhi_writer *writer; /* NULL: none is open */
    queue batch;          /* frames since the last FLUSH */
    bool doubtful;        /* an append failed since the last flush: frames before it may be undone */
    bool sync_failed;     /* what is on disk is not known any more */
};

static void put(queue *q, task *t) {
    t->next = NULL;
    if (q->first == NULL) {
        q->first = t;
    } else {
        q->last->next = t;
    }
    q->last = t;
}

static void wake_loop(const keeper *k) {
    ssize_t put = write(k->wake, "k", 1); /* if the pipe is full the loop is awake anyway */
    (void)put;
}

/* --- Writing ----------------------------------------------------------------------------------------------------- */

static int append(keeper *k, const task *t) {
    int status = k->writer != NULL ? BODHI_OK : bodhi_writer_open(k->dataset, BODHI_NATIVE, NULL, &k->writer);
    if (status == BODHI_OK) {
        status = bodhi_append(k->writer, &t->frame);
        if (t->durable) {
            writer_start_writing(k->writer, START_BYTES);
        }
    }
    k->doubtful = k->doubtful || status < 0;
    return status;
}

/* What the writer still held was acknowledged to nobody, so that whether it could be kept is nobody's matter. */
static void close_writer(keeper *k) {
    int status = bodhi_writer_close(k->writer);
    k->doubtful = k->doubtful || status < 0;
    k->writer = NULL;
}

static int flush(keeper *k, bool durable) {
    int status = k->writer == NULL ? BODHI_OK : bodhi_flush(k->writer, durable);
    if (status != BODHI_OK && status != BODHI_ERROR_FULL) {
        k->sync_failed = k->sync_failed || durable;
        close_writer(k); /* poisoned; the next frame opens another */
    }
    bool doubtful = k->doubtful;
    k->doubtful = false;
    return status == BODHI_OK && doubtful ? BODHI_ERROR_FULL : status;
}

/* Sync the segments in which frames lie that another writer has written, maybe not durably. */
static bool sync_segments(keeper *k, const bodhi_place *places, size_t n) {
    uint64_t last = 0;
    for (size_t i = 0; i < n && !k->sync_failed; i++) {
        if (places[i].found == 0 || places[i].segment == last) {
            continue;
        }
        int fd = open_segment(k->dataset, &places[i]);
        if (fd < 0 || !io_sync(fd)) {
            k->sync_failed = true; /* never tried again */
        }
        if (fd >= 0) {
            (void)io_close(fd);
        }
        last = places[i].segment;
    }
    return !k->sync_failed && io_sync(k->dataset->fd);
}

/* Turn the statuses of appending into acknowledgements. */
static void judge(keeper *k, task *batch, int flushed, bool durable) {
    uint64_t synced = 0; /* the last segment looked at */
    for (task *t = batch; t != NULL; t = t->next) {
        bodhi_place at = {0};
        if (t->status == BODHI_OK && flushed == BODHI_OK) {
            continue;
        }
        /* It was there before, or not all of the batch could be kept: look. */
        if (t->status < 0 || (flushed < 0 && flushed != BODHI_ERROR_FULL) ||
            bodhi_dataset_locate(k->dataset, &t->frame.number, 1, &at) != BODHI_OK || at.found == 0) {
            t->status = t->status < 0 ? t->status : flushed < 0 ? flushed : BODHI_ERROR_SYSTEM;
        } else if (durable && at.segment != synced && !sync_segments(k, &at, 1)) {
            t->status = BODHI_ERROR_SYSTEM;
        } else {
            synced = at.segment;
        }
    }
}

static int have(keeper *k, task *t) {
    int64_t *numbers = (int64_t *)(void *)t->body;
    bodhi_place *places = malloc((t->n + 1) * sizeof *places);
    if (places == NULL) {
        return bodhi_fail_memory();
    }
    int status = bodhi_dataset_refresh(k->dataset);
    if (status == BODHI_OK) {
        status = bodhi_dataset_locate(k->dataset, numbers, (int64_t)t->n, places);
    }
    if (status == BODHI_OK) {
        bool sure = !t->durable || sync_segments(k, places, t->n);
        held_say(places, sure ? t->n : 0, t->n, t->body);
    }
    free(places);
    return status;
}

/* --- The thread -------------------------------------------------------------------------------------------------- */

static void keep_buffer(keeper *k, task *t) {
    pthread_mutex_lock(&k->mutex);
    if (k->n_spare < MAX_SPARE && k->spare_bytes + t->capacity <= SPARE_BYTES) {
        k->spare_bytes += t->capacity;
        k->spare[k->n_spare++] = (buffer){.data = t->body, .capacity = t->capacity};
        t->body = NULL;
    }
    pthread_mutex_unlock(&k->mutex);
    free(t->body);
    t->body = NULL;
}

static void carry_out(keeper *k, task *t) {
    size_t before;
    switch (t->verb) {
    case TASK_FRAME:
        t->status = append(k, t);
        before = atomic_fetch_sub(&k->backlog, t->n);
        keep_buffer(k, t);
        put(&k->batch, t);
        if (before >= BACKLOG_BYTES && before - t->n < BACKLOG_BYTES) {
            wake_loop(k);
        }
        return;
    case TASK_FLUSH:
        t->status = flush(k, t->durable);
        judge(k, k->batch.first, t->status, t->durable);
        t->batch = k->batch.first;
        k->batch = (queue){0};
        break;
    case TASK_HAVE:
        t->status = have(k, t);
        break;
    case TASK_RELEASE:
        close_writer(k);
        k->doubtful = false;
        break;
    }
    pthread_mutex_lock(&k->mutex);
    put(&k->done, t);
    pthread_mutex_unlock(&k->mutex);
    wake_loop(k);
}

/* The next task; NULL: there will be none. */
static task *take_task(keeper *k) {
    pthread_mutex_lock(&k->mutex);
    while (k->todo.first == NULL && !k->ending) {
        pthread_cond_wait(&k->given, &k->mutex);
    }
    task *t = k->todo.first;
    if (t != NULL) {
        k->todo.first = t->next;
    }
    pthread_mutex_unlock(&k->mutex);
    return t;
}

static void *work(void *argument) {
    keeper *k = argument;
    task *t;
    while ((t = take_task(k)) != NULL) {
        carry_out(k, t);
    }
    close_writer(k);
    return NULL;
}

/* --- The loop's side --------------------------------------------------------------------------------------------- */

static bool start_thread(keeper *k) {
    sigset_t all;
    sigset_t before;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are the main thread's */
    bool started = pthread_create(&k->thread, NULL, work, k) == 0;
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

keeper *keeper_start(bodhi_dataset *dataset, int wake) {
    keeper *k = calloc(1, sizeof *k);
    if (k == NULL) {
        return NULL;
    }
    k->dataset = dataset;
    k->wake = wake;
    pthread_mutex_init(&k->mutex, NULL);
    pthread_cond_init(&k->given, NULL);
    if (!start_thread(k)) {
        keeper_free(k);
        return NULL;
    }
    return k;
}

task *keeper_task(enum task_verb verb, uint64_t client, bool durable) {
    task *t = calloc(1, sizeof *t);
    if (t != NULL) {
        t->verb = verb;
        t->client = client;
        t->durable = durable;
    }
    return t;
}

void keeper_take_body(keeper *k, task *t, wire_parser *parser) {
    buffer spare = {0};
    pthread_mutex_lock(&k->mutex);
    if (k->n_spare > 0) {
        spare = k->spare[--k->n_spare];
        k->spare_bytes -= spare.capacity;
    }
    pthread_mutex_unlock(&k->mutex);
    t->body = wire_take_body(parser, &t->capacity, spare.data, spare.capacity);
}

void keeper_give(keeper *k, task *t) {
    if (t->verb == TASK_FRAME) {
        (void)atomic_fetch_add(&k->backlog, t->n);
    }
    pthread_mutex_lock(&k->mutex);
    put(&k->todo, t);
    pthread_cond_signal(&k->given);
    pthread_mutex_unlock(&k->mutex);
}

bool keeper_is_behind(keeper *k) {
    return atomic_load(&k->backlog) >= BACKLOG_BYTES;
}

task *keeper_take_done(keeper *k) {
    pthread_mutex_lock(&k->mutex);
    task *t = k->done.first;
    k->done = (queue){0};
    pthread_mutex_unlock(&k->mutex);
    return t;
}

static void free_all(task *t) {
    while (t != NULL) {
        task *next = t->next;
        task_free(t);
        t = next;
    }
}

void task_free(task *t) {
    for (task *frame = t->batch; frame != NULL;) {
        task *next = frame->next;
        free(frame->body);
        free(frame);
        frame = next;
    }
    free(t->body);
    free(t);
}

void keeper_finish(keeper *k) {
    pthread_mutex_lock(&k->mutex);
    k->ending = true;
    pthread_cond_signal(&k->given);
    pthread_mutex_unlock(&k->mutex);
    (void)pthread_join(k->thread, NULL);
}

void keeper_free(keeper *k) {
    if (k == NULL) {
        return;
    }
    free_all(k->batch.first);
    free_all(k->done.first);
    for (int i = 0; i < k->n_spare; i++) {
        free(k->spare[i].data);
    }
    pthread_cond_destroy(&k->given);
    pthread_mutex_destroy(&k->mutex);
    free(k);
}
