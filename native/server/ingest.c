/* The thread that writes and syncs for the event loop; see ingest.h. */
#include "server/ingest.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/io.h"
#include "base/status.h"
#include "base/threads.h"
#include "store/dataset.h"
#include "write/writer.h"

enum {
    START_BYTES = 2 << 20, /* the disk begins to write while more is received */
    MAX_REFUSED = 64       /* the latest: a client that was told goes away */
};

typedef struct {
    task *first, *last;
} queue;

struct ingest {
    bodhi_dataset *dataset;
    int wake;
    pthread_t thread;
    atomic_size_t *backlog;

    pthread_mutex_t mutex; /* over these */
    pthread_cond_t has_tasks;
    queue todo, done;
    bool ending;

    /* The thread's own. */
    bodhi_writer *writer;          /* NULL: none is open */
    queue batch;                   /* frames since the last FLUSH */
    bool append_failed;            /* since the last flush: frames before it may be undone */
    bool locked_out;               /* since the last flush: it is not waited for again */
    uint64_t refused[MAX_REFUSED]; /* clients of other simulations: nothing more is taken from them */
    size_t n_refused;
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

/* --- Writing ----------------------------------------------------------------------------------------------------- */

static bool is_refused(const ingest *in, uint64_t client) {
    size_t n = in->n_refused < MAX_REFUSED ? in->n_refused : MAX_REFUSED;
    for (size_t i = 0; i < n; i++) {
        if (in->refused[i] == client) {
            return true;
        }
    }
    return false;
}

static bool is_vacant(bodhi_dataset *dataset) {
    pthread_mutex_lock(&dataset->mutex);
    bool vacant = dataset_is_vacant(dataset, BODHI_NATIVE);
    pthread_mutex_unlock(&dataset->mutex);
    return vacant;
}

/* The first frame is shown before the store's lock is left, for whoever stages a trajectory of its name. */
static int append_first(ingest *in, const task *t) {
    int lock = in->locked_out ? -1 : store_lock(in->dataset->store);
    if (lock < 0) {
        in->locked_out = true;
        return bodhi_fail(BODHI_ERROR_BUSY, "%s is locked by somebody who stages", in->dataset->store->path);
    }
    int status = store_refuse_staged(in->dataset->store, in->dataset->name);
    status = status == BODHI_OK ? dataset_check_author(in->dataset) : status;
    status = status == BODHI_OK ? bodhi_append(in->writer, &t->frame) : status;
    status = status == BODHI_OK ? bodhi_flush(in->writer, 0) : status;
    io_drop(lock);
    return status;
}

static int append(ingest *in, task *t) {
    if (is_refused(in, t->client)) {
        return BODHI_ERROR_CONFLICT;
    }
    int status = in->writer != NULL ? BODHI_OK : bodhi_writer_open(in->dataset, BODHI_NATIVE, NULL, &in->writer);
    if (status == BODHI_OK) {
        status = is_vacant(in->dataset) ? append_first(in, t) : bodhi_append(in->writer, &t->frame);
        if (t->durable) {
            in->writer->durable = true;
            writer_start_writeback(in->writer, START_BYTES);
        }
    }
    if (status == BODHI_EXISTS) {
        t->segment = in->writer->existing_segment;
    }
    if (status == BODHI_ERROR_FULL || status == BODHI_ERROR_CONFLICT || status == BODHI_ERROR_BUSY) {
        t->reason = strdup(bodhi_message());
    }
    if (status == BODHI_ERROR_CONFLICT) {
        in->refused[in->n_refused++ % MAX_REFUSED] = t->client;
    } else {
        in->append_failed = in->append_failed || status < 0;
    }
    return status;
}

/* What the writer still had was acknowledged to nobody, so that whether it could be written is nobody's matter. */
static void close_writer(ingest *in) {
    int status = bodhi_writer_close(in->writer);
    in->append_failed = in->append_failed || status < 0;
    in->writer = NULL;
}

/* The acknowledgement of one frame. `synced` is the segment that was synced last. */
static int check_task(ingest *in, const task *t, int flushed, bool durable, uint32_t *synced) {
    bodhi_place at = {0};
    uint32_t ordinal = t->segment;
    if (flushed < 0 && flushed != BODHI_ERROR_FULL) {
        return flushed;
    }
    if (bodhi_dataset_locate(in->dataset, &t->frame.number, 1, &at) != BODHI_OK || at.found == 0) {
        return flushed < 0 ? flushed : BODHI_ERROR_SYSTEM;
    }
    if (!durable) {
        return t->status;
    }
    if (t->status == BODHI_OK) {
        pthread_mutex_lock(&in->dataset->mutex);
        bool known = dataset_find(in->dataset, (unsigned)at.kind, at.segment, &ordinal) != NULL;
        pthread_mutex_unlock(&in->dataset->mutex);
        if (!known) {
            return BODHI_ERROR_SYSTEM;
        }
    }
    if (ordinal != *synced && !dataset_sync_segment(in->dataset, ordinal)) {
        return BODHI_ERROR_SYSTEM; /* it is given again, and then written to another segment, if this one has failed */
    }
    *synced = ordinal;
    return t->status;
}

/* --- Flushing ---------------------------------------------------------------------------------------------------- */

/* Hand back the frames that were flushed, and the task behind them. */
static void complete(ingest *in, task *t) {
    put(&in->batch, t);
    pthread_mutex_lock(&in->mutex);
    if (in->done.first == NULL) {
        in->done = in->batch;
    } else {
        in->done.last->next = in->batch.first;
        in->done.last = in->batch.last;
    }
    pthread_mutex_unlock(&in->mutex);
    in->batch = (queue){0};
    ssize_t woken = write(in->wake, "i", 1); /* if the pipe is full the loop is awake anyway */
    (void)woken;
}

/* Make what was appended visible. With a failed append among it, FULL, for which flush() looks at each frame. */
static int flush_writer(ingest *in, bool durable) {
    int status = BODHI_OK;
    if (in->writer != NULL) {
        in->writer->n_existing = 0; /* flush() syncs what was there */
        status = bodhi_flush(in->writer, durable);
    }
    if (status != BODHI_OK && status != BODHI_ERROR_FULL) {
        close_writer(in); /* poisoned; the next frame opens another */
    }
    return status == BODHI_OK && in->append_failed ? BODHI_ERROR_FULL : status;
}

/* Flush, and turn the statuses of appending into acknowledgements. */
static void flush(ingest *in, task *t) {
    uint32_t synced = UINT32_MAX;
    in->locked_out = false;
    t->status = flush_writer(in, t->durable);
    in->append_failed = false;
    for (task *frame = in->batch.first; frame != NULL; frame = frame->next) {
        if (frame->status > 0 || (frame->status == BODHI_OK && t->status != BODHI_OK)) {
            frame->status = check_task(in, frame, t->status, t->durable, &synced);
        }
    }
}

/* --- The thread -------------------------------------------------------------------------------------------------- */

/* Bytes that a task holds while it waits; of small frames the task is the most. */
static size_t weight_of(const task *t) {
    return t->n + sizeof *t;
}

static void run_task(ingest *in, task *t) {
    switch (t->verb) {
    case TASK_FRAME:
        t->status = append(in, t);
        free(t->body);
        t->body = NULL;
        break;
    case TASK_FLUSH:
        flush(in, t);
        break;
    default:
        close_writer(in);
        in->append_failed = false;
        break;
    }
    (void)atomic_fetch_sub(in->backlog, weight_of(t));
    if (t->verb == TASK_FRAME) {
        put(&in->batch, t);
    } else {
        complete(in, t);
    }
}

/* The next task; NULL: there will be none. */
static task *take_task(ingest *in) {
    pthread_mutex_lock(&in->mutex);
    while (in->todo.first == NULL && !in->ending) {
        pthread_cond_wait(&in->has_tasks, &in->mutex);
    }
    task *t = in->todo.first;
    if (t != NULL) {
        in->todo.first = t->next;
    }
    pthread_mutex_unlock(&in->mutex);
    return t;
}

static void *work(void *argument) {
    ingest *in = argument;
    for (task *t = take_task(in); t != NULL; t = take_task(in)) {
        run_task(in, t);
    }
    close_writer(in);
    return NULL;
}

/* --- The loop's side --------------------------------------------------------------------------------------------- */

ingest *ingest_start(bodhi_dataset *dataset, int wake, atomic_size_t *backlog) {
    ingest *in = calloc(1, sizeof *in);
    if (in == NULL) {
        return NULL;
    }
    in->dataset = dataset;
    in->wake = wake;
    in->backlog = backlog;
    pthread_mutex_init(&in->mutex, NULL);
    pthread_cond_init(&in->has_tasks, NULL);
    if (!thread_start(&in->thread, work, in)) {
        in->ending = true;
        ingest_free(in);
        return NULL;
    }
    return in;
}

task *task_new(enum task_verb verb, uint64_t client, bool durable) {
    task *t = calloc(1, sizeof *t);
    if (t != NULL) {
        t->verb = verb;
        t->client = client;
        t->durable = durable;
    }
    return t;
}

void ingest_submit(ingest *in, task *t) {
    (void)atomic_fetch_add(in->backlog, weight_of(t));
    pthread_mutex_lock(&in->mutex);
    put(&in->todo, t);
    pthread_cond_signal(&in->has_tasks);
    pthread_mutex_unlock(&in->mutex);
}

task *ingest_take_done(ingest *in) {
    pthread_mutex_lock(&in->mutex);
    task *t = in->done.first;
    in->done = (queue){0};
    pthread_mutex_unlock(&in->mutex);
    return t;
}

void tasks_free(task *list) {
    for (task *t = list; t != NULL; t = list) {
        list = t->next;
        free(t->reason);
        free(t->body);
        free(t);
    }
}

void ingest_finish(ingest *in) {
    pthread_mutex_lock(&in->mutex);
    bool finished = in->ending;
    in->ending = true;
    pthread_cond_signal(&in->has_tasks);
    pthread_mutex_unlock(&in->mutex);
    if (!finished) {
        (void)pthread_join(in->thread, NULL);
    }
}

void ingest_free(ingest *in) {
    if (in == NULL) {
        return;
    }
    ingest_finish(in);
    tasks_free(in->todo.first);
    tasks_free(in->batch.first);
    tasks_free(in->done.first);
    pthread_cond_destroy(&in->has_tasks);
    pthread_mutex_destroy(&in->mutex);
    free(in);
}
