/* Writing by a thread; see stream.h. */
#include "base/stream.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/io.h"
#include "base/memory.h"
#include "base/threads.h"

enum {
    BLOCK = 4096, /* of all file systems and disks, or a multiple of it */
    BUFFER_BYTES = LARGE_PAGE
};

typedef struct {
    unsigned char *bytes; /* at a multiple of BLOCK; byte i is of the place base + i of the file */
    size_t capacity;
} buffer;

/* Bytes to be written. */
typedef struct {
    const unsigned char *bytes;
    size_t size;
    uint64_t at;
} job;

struct stream {
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool ends;
    int fd, direct;
    job job; /* to be done, or being done; no bytes: none */
    uint64_t written;
    bool failed;
    int error;
    uint64_t failed_at;
    /* Of who fills: */
    buffer buffers[2]; /* one is filled while the other is written */
    unsigned now;      /* which is filled */
    uint64_t base;     /* where in the file it begins */
    size_t first, end; /* of what is in it and was not handed over */
};

/* --- Writing ------------------------------------------------------------------------------------------------------ */

static bool put(int fd, const unsigned char *bytes, size_t size, uint64_t at) {
    return size == 0 || io_write(fd, bytes, size, at);
}

/* Write whole blocks past the page cache; what a file system refuses to take so goes the other way from then on. */
static bool put_blocks(stream *s, const unsigned char *bytes, size_t size, uint64_t at) {
    if (s->direct >= 0 && size > 0) {
        if (put(s->direct, bytes, size, at)) {
            return true;
        }
        if (errno != EINVAL) {
            return false;
        }
        io_drop(s->direct);
        s->direct = -1;
    }
    return put(s->fd, bytes, size, at);
}

static bool write_job(stream *s, const job *j) {
    if (s->direct < 0) {
        return put(s->fd, j->bytes, j->size, j->at);
    }
    size_t head = (size_t)(-j->at % BLOCK);
    head = head < j->size ? head : j->size;
    size_t blocks = (j->size - head) / BLOCK * BLOCK;
    return put(s->fd, j->bytes, head, j->at) && put_blocks(s, j->bytes + head, blocks, j->at + head) &&
           put(s->fd, j->bytes + head + blocks, j->size - head - blocks, j->at + head + blocks);
}

/* Do the job; the mutex is held, and let go meanwhile. */
static void do_job(stream *s) {
    const job j = s->job;
    bool skips = s->failed;
    int error = 0;
    (void)pthread_mutex_unlock(&s->mutex);
    if (!skips && !write_job(s, &j)) {
        error = errno;
    }
    (void)pthread_mutex_lock(&s->mutex);
    s->written += error == 0 && !skips ? j.size : 0;
    if (error != 0) {
        s->failed = true;
        s->error = error;
        s->failed_at = j.at;
    }
    s->job.size = 0;
    (void)pthread_cond_signal(&s->changed);
}

static void *run(void *argument) {
    stream *s = argument;
    (void)pthread_mutex_lock(&s->mutex);
    while (!s->ends) {
        if (s->job.size > 0) {
            do_job(s);
        } else {
            (void)pthread_cond_wait(&s->changed, &s->mutex);
        }
    }
    (void)pthread_mutex_unlock(&s->mutex);
    return NULL;
}

/* --- Waiting ------------------------------------------------------------------------------------------------------ */

static void lock_idle(stream *s) {
    (void)pthread_mutex_lock(&s->mutex);
    while (s->job.size > 0) {
        (void)pthread_cond_wait(&s->changed, &s->mutex);
    }
}

void stream_wait(stream *s) {
    lock_idle(s);
    (void)pthread_mutex_unlock(&s->mutex);
}

uint64_t stream_written(stream *s) {
    (void)pthread_mutex_lock(&s->mutex);
    uint64_t written = s->written;
    s->written = 0;
    (void)pthread_mutex_unlock(&s->mutex);
    return written;
}

bool stream_has_failed(stream *s, uint64_t *from) {
    (void)pthread_mutex_lock(&s->mutex);
    bool failed = s->failed;
    if (failed) {
        *from = s->failed_at;
        errno = s->error;
    }
    (void)pthread_mutex_unlock(&s->mutex);
    return failed;
}

/* --- Filling ------------------------------------------------------------------------------------------------------ */

/* Hand over the first `size` bytes of what is there, once all before is written. */
static void hand_over(stream *s, size_t size) {
    lock_idle(s);
    if (size > 0) {
        s->job = (job){.bytes = s->buffers[s->now].bytes + s->first, .size = size, .at = s->base + s->first};
        s->first += size;
        (void)pthread_cond_signal(&s->changed);
    }
    (void)pthread_mutex_unlock(&s->mutex);
}

void stream_push(stream *s) {
    hand_over(s, s->end - s->first);
}

/* A buffer of at least `size` bytes. */
static bool reserve(buffer *b, size_t size) {
    if (size <= b->capacity) {
        return true;
    }
    size_t capacity;
    unsigned char *made = large_alloc(size < BUFFER_BYTES ? (size_t)BUFFER_BYTES : size, &capacity);
    if (made == NULL) {
        return false;
    }
    free(b->bytes);
    *b = (buffer){.bytes = made, .capacity = capacity};
    return true;
}

/* Go on in another buffer, with the bytes of the last block if that is not full. */
static bool turn(stream *s, size_t size) {
    size_t rest = (s->base + s->end) % BLOCK;
    rest = rest < s->end - s->first ? rest : s->end - s->first;
    hand_over(s, s->end - s->first - rest);
    unsigned next = 1 - s->now;       /* written by now */
    uint64_t at = s->base + s->first; /* of the first byte that was not handed over */
    size_t skew = (size_t)(at % BLOCK);
    if (!reserve(&s->buffers[next], skew + rest + size)) {
        return false;
    }
    if (rest > 0) {
        memcpy(s->buffers[next].bytes + skew, s->buffers[s->now].bytes + s->first, rest);
    }
    s->now = next;
    s->base = at - skew;
    s->first = skew;
    s->end = skew + rest;
    return true;
}

unsigned char *stream_room(stream *s, size_t size) {
    if (s->end + size > s->buffers[s->now].capacity && !turn(s, size)) {
        return NULL;
    }
    unsigned char *room = s->buffers[s->now].bytes + s->end;
    s->end += size;
    return room;
}

void stream_to(stream *s, int fd, int direct, uint64_t offset) {
    stream_wait(s);
    io_drop(s->direct);
    s->fd = fd;
    s->direct = direct;
    s->failed = false;
    s->written = 0;
    s->base = offset / BLOCK * BLOCK;
    s->first = s->end = (size_t)(offset % BLOCK);
}

/* --- Opening ------------------------------------------------------------------------------------------------------ */

static void stream_free(stream *s) {
    (void)pthread_mutex_destroy(&s->mutex);
    (void)pthread_cond_destroy(&s->changed);
    free(s->buffers[0].bytes);
    free(s->buffers[1].bytes);
    free(s);
}

stream *stream_open(void) {
    stream *s = calloc(1, sizeof *s);
    if (s != NULL) {
        s->fd = s->direct = -1;
        (void)pthread_mutex_init(&s->mutex, NULL);
        (void)pthread_cond_init(&s->changed, NULL);
    }
    if (s != NULL && !thread_start(&s->thread, run, s)) {
        stream_free(s);
        return NULL;
    }
    return s;
}

void stream_close(stream *s) {
    if (s != NULL) {
        stream_to(s, -1, -1, 0);
        (void)pthread_mutex_lock(&s->mutex);
        s->ends = true;
        (void)pthread_cond_signal(&s->changed);
        (void)pthread_mutex_unlock(&s->mutex);
        (void)pthread_join(s->thread, NULL);
        stream_free(s);
    }
}
