/* The thread that writes for the event loop; see ingest.h. Another one syncs, so that the frames of the next batch are
 * written while those of the last one are on their way to the disk. */
#include "server/ingest.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/io.h"
#include "base/status.h"
#include "base/thread.h"
#include "store/dataset.h"
#include "write/compare.h"
#include "write/writer.h"

enum {
    BACKLOG_BYTES = 64 << 20, /* as much as one pusher has in flight by default */
    START_BYTES = 2 << 20,    /* the disk begins to write while more is received */
    MAX_SPARE = 64,           /* buffers for the next frames: fresh memory costs as much as writing it */
    SPARE_BYTES = 32 << 20,
    MAX_REFUSED = 64 /* the latest: a client that was told goes away */
};

typedef struct {
    unsigned char *data;
    size_t capacity;
} buffer;

typedef struct {
    task *first, *last;
} queue;

struct ingest {
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
    bodhi_writer *writer;          /* NULL: none is open */
    queue batch;                   /* frames since the last FLUSH */
    task *flushing;                /* the FLUSH that is being synced; NULL: none */
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

static void wake_loop(const ingest *in) {
    ssize_t put = write(in->wake, "i", 1); /* if the pipe is full the loop is awake anyway */
    (void)put;
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
    uint64_t first;
    pthread_mutex_lock(&dataset->mutex);
    bool vacant = dataset_numbers(dataset, BODHI_NATIVE, 0, &first, 1) == 0;
    pthread_mutex_unlock(&dataset->mutex);
    return vacant;
}

/* The first frame of a dataset. A trajectory may be staged under its name at the same moment: whoever comes second is
 * to find the first one, so that the frame is shown before the store's lock is left. */
static int append_first(ingest *in, const task *t) {
    int lock = in->locked_out ? -1 : store_lock(in->dataset->store);
    if (lock < 0) {
        in->locked_out = true;
        return bodhi_fail(BODHI_ERROR_BUSY, "%s is locked by somebody who stages", in->dataset->store->path);
    }
    int status = store_refuse_staged(in->dataset->store, in->dataset->name);
    if (status == BODHI_OK) {
        status = dataset_check_author(in->dataset);
    }
    if (status == BODHI_OK) {
        status = bodhi_append(in->writer, &t->frame);
    }
    if (status == BODHI_OK) {
        status = bodhi_flush(in->writer, 0);
    }
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
        t->segment = in->writer->found;
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

/* The result of a flush: with a failed append before or after it, FULL, for which settle_acks() looks at each frame. */
static int flushed(ingest *in, int status) {
    bool append_failed = in->append_failed;
    if (status != BODHI_OK && status != BODHI_ERROR_FULL) {
        close_writer(in); /* poisoned; the next frame opens another */
    }
    return status == BODHI_OK && append_failed ? BODHI_ERROR_FULL : status;
}

/* The acknowledgement of one frame: it was there before, or not all of the batch could be written. `synced` is the
 * segment that was synced last. */
static int settle(ingest *in, const task *t, int flushed, bool durable, uint32_t *synced) {
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

/* Turn the statuses of appending into acknowledgements. */
static void settle_acks(ingest *in, task *batch, int flushed, bool durable) {
    uint32_t synced = UINT32_MAX;
    for (task *t = batch; t != NULL; t = t->next) {
        if (t->status > 0 || (t->status == BODHI_OK && flushed != BODHI_OK)) {
            t->status = settle(in, t, flushed, durable, &synced);
        }
    }
}

/* Whether a frame is kept as this body of a FRAME has it, for good if `durable`: as in KEPT. */
static enum wire_kept is_kept(ingest *in, uint64_t number, uint32_t crc, bool durable, uint32_t *synced) {
    stored_frame found;
    if (stored_find(in->dataset, BODHI_NATIVE, number, &found) != BODHI_OK) {
        return WIRE_ABSENT;
    }
    bool same = wire_frame_crc(&found.frame) == crc;
    uint32_t ordinal = found.ordinal;
    stored_free(&found);
    if (!same) {
        return WIRE_OTHER;
    }
    if (durable && ordinal != *synced && !dataset_sync_segment(in->dataset, ordinal)) {
        return WIRE_ABSENT;
    }
    *synced = ordinal;
    return WIRE_HELD;
}

/* Say what is kept; the answers take the place of the questions. */
static int look_up(ingest *in, task *t) {
    uint32_t synced = UINT32_MAX;
    int status = bodhi_dataset_refresh(in->dataset);
    for (size_t i = 0; i < t->n && status == BODHI_OK; i++) {
        const unsigned char *asked = t->body + i * WIRE_KEEP_BYTES;
        t->body[i] = (unsigned char)is_kept(in, get64(asked), get32(asked + 8), t->durable, &synced);
    }
    return status;
}

/* --- Flushing ---------------------------------------------------------------------------------------------------- */

static void complete(ingest *in, task *t) {
    pthread_mutex_lock(&in->mutex);
    put(&in->done, t);
    pthread_mutex_unlock(&in->mutex);
    wake_loop(in);
}

static void *sync_for(void *argument) {
    ingest *in = argument;
    pthread_mutex_lock(&in->mutex);
    while (!in->syncer_ending) {
        if (in->sync != SYNCING) {
            pthread_cond_wait(&in->changed, &in->mutex);
            continue;
        }
        pthread_mutex_unlock(&in->mutex);
        bool done = sync_listed(&in->list);
        pthread_mutex_lock(&in->mutex);
        in->synced = done;
        in->sync = SYNCED;
        pthread_cond_signal(&in->given);
    }
    pthread_mutex_unlock(&in->mutex);
    return NULL;
}

/* Wait for the sync that is under way, and make what it was for visible. */
static void end_flush(ingest *in) {
    task *t = in->flushing;
    if (t == NULL) {
        return;
    }
    pthread_mutex_lock(&in->mutex);
    while (in->sync != SYNCED) {
        pthread_cond_wait(&in->given, &in->mutex);
    }
    in->sync = IDLE;
    pthread_mutex_unlock(&in->mutex);
    int status = in->writer == NULL ? BODHI_ERROR_POISONED : writer_end_flush(in->writer, in->synced);
    in->append_failed = in->append_failed || status < 0; /* what was appended since may be undone as well */
    t->status = flushed(in, status);
    settle_acks(in, t->batch, t->status, true);
    in->flushing = NULL;
    complete(in, t);
}

/* Have what was appended synced; end_flush() has the rest. */
static void begin_flush(ingest *in, task *t) {
    sync_list list = {0};
    int status = writer_begin_flush(in->writer, &list);
    bool append_failed = in->append_failed || status < 0;
    if (status < 0 && status != BODHI_ERROR_FULL) {
        (void)sync_listed(&list);
        t->status = flushed(in, status);
        settle_acks(in, t->batch, t->status, true);
        in->append_failed = false;
        complete(in, t);
        return;
    }
    in->append_failed = append_failed; /* frames of this batch are missing: each is looked at */
    pthread_mutex_lock(&in->mutex);
    in->list = list;
    in->sync = SYNCING;
    pthread_cond_signal(&in->changed);
    pthread_mutex_unlock(&in->mutex);
    in->flushing = t;
    if (append_failed) {
        end_flush(in); /* so that it ends with the batch */
        in->append_failed = false;
    }
}

static void flush(ingest *in, task *t) {
    t->batch = in->batch.first;
    in->batch = (queue){0};
    in->locked_out = false;
    if (t->durable && in->writer != NULL) {
        begin_flush(in, t);
        return;
    }
    t->status = flushed(in, in->writer == NULL ? BODHI_OK : bodhi_flush(in->writer, 0));
    in->append_failed = false;
    settle_acks(in, t->batch, t->status, t->durable);
    complete(in, t);
}

/* --- The thread -------------------------------------------------------------------------------------------------- */

static void recycle_buffer(ingest *in, task *t) {
    pthread_mutex_lock(&in->mutex);
    if (in->n_spare < MAX_SPARE && in->spare_bytes + t->capacity <= SPARE_BYTES) {
        in->spare_bytes += t->capacity;
        in->spare[in->n_spare++] = (buffer){.data = t->body, .capacity = t->capacity};
        t->body = NULL;
    }
    pthread_mutex_unlock(&in->mutex);
    free(t->body);
    t->body = NULL;
}

/* Bytes that a frame holds while it waits; of small ones the task is the most. */
static size_t weight_of(const task *t) {
    return t->n + sizeof *t;
}

static void write_frame(ingest *in, task *t) {
    t->status = append(in, t);
    size_t weight = weight_of(t);
    size_t before = atomic_fetch_sub(&in->backlog, weight);
    recycle_buffer(in, t);
    put(&in->batch, t);
    if (before >= BACKLOG_BYTES && before - weight < BACKLOG_BYTES) {
        wake_loop(in);
    }
}

static void run_task(ingest *in, task *t) {
    if (t->verb == TASK_FRAME) {
        write_frame(in, t);
        return;
    }
    end_flush(in); /* in their order */
    switch (t->verb) {
    case TASK_FLUSH:
        flush(in, t);
        return;
    case TASK_KEPT:
        t->status = look_up(in, t);
        break;
    default:
        close_writer(in);
        in->append_failed = false;
        break;
    }
    complete(in, t);
}

/* The next task; NULL: there will be none, or a sync has ended. */
static task *take_task(ingest *in) {
    pthread_mutex_lock(&in->mutex);
    while (in->todo.first == NULL && !in->ending && in->sync != SYNCED) {
        pthread_cond_wait(&in->given, &in->mutex);
    }
    task *t = in->sync == SYNCED ? NULL : in->todo.first;
    if (t != NULL) {
        in->todo.first = t->next;
    }
    pthread_mutex_unlock(&in->mutex);
    return t;
}

static void *work(void *argument) {
    ingest *in = argument;
    for (;;) {
        task *t = take_task(in);
        if (t != NULL) {
            run_task(in, t);
        } else if (in->flushing != NULL) {
            end_flush(in);
        } else {
            break;
        }
    }
    close_writer(in);
    return NULL;
}

/* --- The loop's side --------------------------------------------------------------------------------------------- */

static void end_syncer(ingest *in) {
    pthread_mutex_lock(&in->mutex);
    in->syncer_ending = true;
    pthread_cond_signal(&in->changed);
    pthread_mutex_unlock(&in->mutex);
    (void)pthread_join(in->syncer, NULL);
}

static bool start_threads(ingest *in) {
    bool started = thread_start(&in->syncer, sync_for, in);
    if (started && !thread_start(&in->thread, work, in)) {
        end_syncer(in);
        started = false;
    }
    return started;
}

ingest *ingest_start(bodhi_dataset *dataset, int wake) {
    ingest *in = calloc(1, sizeof *in);
    if (in == NULL) {
        return NULL;
    }
    in->dataset = dataset;
    in->wake = wake;
    pthread_mutex_init(&in->mutex, NULL);
    pthread_cond_init(&in->given, NULL);
    pthread_cond_init(&in->changed, NULL);
    if (!start_threads(in)) {
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

void ingest_take_body(ingest *in, task *t, wire_parser *parser) {
    buffer spare = {0};
    pthread_mutex_lock(&in->mutex);
    if (in->n_spare > 0) {
        spare = in->spare[--in->n_spare];
        in->spare_bytes -= spare.capacity;
    }
    pthread_mutex_unlock(&in->mutex);
    t->body = wire_take_body(parser, &t->capacity, spare.data, spare.capacity);
}

void ingest_submit(ingest *in, task *t) {
    if (t->verb == TASK_FRAME) {
        (void)atomic_fetch_add(&in->backlog, weight_of(t));
    }
    pthread_mutex_lock(&in->mutex);
    put(&in->todo, t);
    pthread_cond_signal(&in->given);
    pthread_mutex_unlock(&in->mutex);
}

bool ingest_is_behind(ingest *in) {
    return atomic_load(&in->backlog) >= BACKLOG_BYTES;
}

size_t ingest_held(ingest *in) {
    pthread_mutex_lock(&in->mutex);
    size_t spare = in->spare_bytes;
    pthread_mutex_unlock(&in->mutex);
    return spare + atomic_load(&in->backlog);
}

void ingest_trim(ingest *in) {
    pthread_mutex_lock(&in->mutex);
    while (in->n_spare > 0) {
        free(in->spare[--in->n_spare].data);
    }
    in->spare_bytes = 0;
    pthread_mutex_unlock(&in->mutex);
}

task *ingest_take_done(ingest *in) {
    pthread_mutex_lock(&in->mutex);
    task *t = in->done.first;
    in->done = (queue){0};
    pthread_mutex_unlock(&in->mutex);
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
        free(frame->reason);
        free(frame->body);
        free(frame);
        frame = next;
    }
    free(t->reason);
    free(t->body);
    free(t);
}

void ingest_finish(ingest *in) {
    pthread_mutex_lock(&in->mutex);
    bool finished = in->ending; /* by a server that ends, before it closes datasets that are idle */
    in->ending = true;
    pthread_cond_signal(&in->given);
    pthread_mutex_unlock(&in->mutex);
    if (finished) {
        return;
    }
    (void)pthread_join(in->thread, NULL);
    end_syncer(in);
}

void ingest_free(ingest *in) {
    if (in == NULL) {
        return;
    }
    free_all(in->batch.first);
    free_all(in->done.first);
    for (int i = 0; i < in->n_spare; i++) {
        free(in->spare[i].data);
    }
    pthread_cond_destroy(&in->given);
    pthread_cond_destroy(&in->changed);
    pthread_mutex_destroy(&in->mutex);
    free(in);
}
