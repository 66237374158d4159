/* The thread that writes for the event loop; see keep.h. Another one syncs, so that the frames of the next batch are
 * written while those of the last one are on their way to the disk. */
#include "server/ingest.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/io.h"
#include "base/status.h"
#include "server/answer.h"
#include "store/dataset.h"

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
    pthread_t thread, syncer;
    atomic_size_t backlog; /* bytes of frames that wait */

    pthread_mutex_t mutex;         /* over these */
    pthread_cond_t given, changed; /* for the thread; for the syncer */
    queue todo, done;
    bool ending, syncer_ending;
    enum { IDLE, SYNCING, SYNCED } sync;
    sync_list list;
    bool synced; /* successfully */
    buffer spare[MAX_SPARE];
    int n_spare;
    size_t spare_bytes;

    /* The thread's own. */
    bodhi_writer *writer; /* NULL: none is open */
    queue batch;          /* frames since the last FLUSH */
    task *flushing;       /* the FLUSH that is being synced; NULL: none */
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

/* The result of a flush: with a failed append before or after it, FULL, for which judge() looks at each frame. */
static int flushed(keeper *k, int status, bool durable) {
    bool doubtful = k->doubtful;
    if (status != BODHI_OK && status != BODHI_ERROR_FULL) {
        k->sync_failed = k->sync_failed || durable;
        close_writer(k); /* poisoned; the next frame opens another */
    }
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

/* --- Flushing ---------------------------------------------------------------------------------------------------- */

static void give_back(keeper *k, task *t) {
    pthread_mutex_lock(&k->mutex);
    put(&k->done, t);
    pthread_mutex_unlock(&k->mutex);
    wake_loop(k);
}

static void *sync_for(void *argument) {
    keeper *k = argument;
    pthread_mutex_lock(&k->mutex);
    while (!k->syncer_ending) {
        if (k->sync != SYNCING) {
            pthread_cond_wait(&k->changed, &k->mutex);
            continue;
        }
        pthread_mutex_unlock(&k->mutex);
        bool done = sync_listed(&k->list);
        pthread_mutex_lock(&k->mutex);
        k->synced = done;
        k->sync = SYNCED;
        pthread_cond_signal(&k->given);
    }
    pthread_mutex_unlock(&k->mutex);
    return NULL;
}

/* Wait for the sync that is under way, and make what it was for visible. */
static void end_flush(keeper *k) {
    task *t = k->flushing;
    if (t == NULL) {
        return;
    }
    pthread_mutex_lock(&k->mutex);
    while (k->sync != SYNCED) {
        pthread_cond_wait(&k->given, &k->mutex);
    }
    k->sync = IDLE;
    pthread_mutex_unlock(&k->mutex);
    int status = k->writer == NULL ? BODHI_ERROR_POISONED : writer_end_flush(k->writer, k->synced);
    k->doubtful = k->doubtful || status < 0; /* what was appended since may be undone as well */
    t->status = flushed(k, status, true);
    judge(k, t->batch, t->status, true);
    k->flushing = NULL;
    give_back(k, t);
}

/* Have what was appended synced; end_flush() has the rest. */
static void begin_flush(keeper *k, task *t) {
    sync_list list = {0};
    int status = writer_begin_flush(k->writer, &list);
    bool doubtful = k->doubtful || status < 0;
    if (status < 0 && status != BODHI_ERROR_FULL) {
        (void)sync_listed(&list);
        t->status = flushed(k, status, true);
        judge(k, t->batch, t->status, true);
        k->doubtful = false;
        give_back(k, t);
        return;
    }
    k->doubtful = doubtful; /* frames of this batch are missing: each is looked at */
    pthread_mutex_lock(&k->mutex);
    k->list = list;
    k->sync = SYNCING;
    pthread_cond_signal(&k->changed);
    pthread_mutex_unlock(&k->mutex);
    k->flushing = t;
    if (doubtful) {
        end_flush(k); /* so that the doubt ends with the batch */
        k->doubtful = false;
    }
}

static void flush(keeper *k, task *t) {
    t->batch = k->batch.first;
    k->batch = (queue){0};
    if (t->durable && k->writer != NULL) {
        begin_flush(k, t);
        return;
    }
    t->status = flushed(k, k->writer == NULL ? BODHI_OK : bodhi_flush(k->writer, 0), t->durable);
    k->doubtful = false;
    judge(k, t->batch, t->status, t->durable);
    give_back(k, t);
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

static void keep_frame(keeper *k, task *t) {
    t->status = append(k, t);
    size_t before = atomic_fetch_sub(&k->backlog, t->n);
    keep_buffer(k, t);
    put(&k->batch, t);
    if (before >= BACKLOG_BYTES && before - t->n < BACKLOG_BYTES) {
        wake_loop(k);
    }
}

static void carry_out(keeper *k, task *t) {
    if (t->verb == TASK_FRAME) {
        keep_frame(k, t);
        return;
    }
    end_flush(k); /* in their order */
    switch (t->verb) {
    case TASK_FLUSH:
        flush(k, t);
        return;
    case TASK_HAVE:
        t->status = have(k, t);
        break;
    default:
        close_writer(k);
        k->doubtful = false;
        break;
    }
    give_back(k, t);
}

/* The next task; NULL: there will be none, or a sync has ended. */
static task *take_task(keeper *k) {
    pthread_mutex_lock(&k->mutex);
    while (k->todo.first == NULL && !k->ending && k->sync != SYNCED) {
        pthread_cond_wait(&k->given, &k->mutex);
    }
    task *t = k->sync == SYNCED ? NULL : k->todo.first;
    if (t != NULL) {
        k->todo.first = t->next;
    }
    pthread_mutex_unlock(&k->mutex);
    return t;
}

static void *work(void *argument) {
    keeper *k = argument;
    for (;;) {
        task *t = take_task(k);
        if (t != NULL) {
            carry_out(k, t);
        } else if (k->flushing != NULL) {
            end_flush(k);
        } else {
            break;
        }
    }
    close_writer(k);
    return NULL;
}

/* --- The loop's side --------------------------------------------------------------------------------------------- */

static void end_syncer(keeper *k) {
    pthread_mutex_lock(&k->mutex);
    k->syncer_ending = true;
    pthread_cond_signal(&k->changed);
    pthread_mutex_unlock(&k->mutex);
    (void)pthread_join(k->syncer, NULL);
}

static bool start_threads(keeper *k) {
    sigset_t all;
    sigset_t before;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are the main thread's */
    bool started = pthread_create(&k->syncer, NULL, sync_for, k) == 0;
    if (started && pthread_create(&k->thread, NULL, work, k) != 0) {
        end_syncer(k);
        started = false;
    }
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
    pthread_cond_init(&k->changed, NULL);
    if (!start_threads(k)) {
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
    end_syncer(k);
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
    pthread_cond_destroy(&k->changed);
    pthread_mutex_destroy(&k->mutex);
    free(k);
}
