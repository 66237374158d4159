/* A reader inside the library: the frames that it was asked for, and the windows through which they are read. */
#pragma once

#include <pthread.h>

#include "bodhi.h"
#include "read/locator.h"
#include "read/unpack.h"
#include "segments/record.h"

enum { MAX_RING = 64, MAX_THREADS = 2 };

typedef struct {
    uint64_t at;   /* of the record in the window's buffer */
    int32_t error; /* 0: read; -1: cut short; else errno */
    bool checked;  /* blocks that are asked for are there and have the right checksums */
} item;

/* Neighbouring records of one segment, which lie in the buffer as they do there. Items order[first] to order[last - 1].
 */
typedef struct {
    uint32_t segment;
    uint64_t start, end; /* in the segment */
    uint64_t at;         /* in the buffer */
    size_t first, last;
} extent;

/* Where the blocks that are asked for lie in records like one that was looked at. */
typedef struct {
    bool known;
    bool stale; /* a record had its blocks elsewhere: to be looked at anew */
    place like;
    piece *pieces; /* apart and ascending; the first is the head */
    size_t count, capacity;
    unsigned char *head; /* of the record that was looked at */
    size_t head_capacity;
} layout;

typedef struct {
    size_t first, count; /* in the reader's list */
    unsigned char *buffer;
    size_t capacity;
    item *items;
    uint32_t *order;
    extent *extents;
    size_t n_extents;
    fetched *batch; /* requests to another machine */
    size_t n_batch, batch_capacity;
    layout layout;
    int status; /* of filling it: OK or MEMORY */
} window;

struct bodhi_reader {
    locator *locator;
    bodhi_read_options options;
    selection subset;
    bodhi_range *ranges; /* of it; NULL: all atoms */
    bool direct;
    target *list;
    size_t n, next;
    size_t located;  /* up to here it is known where frames lie */
    double part;     /* of a record's bytes that is needed, roughly; 0: not known yet */
    window *windows; /* the ring; without threads only the first is used */
    window spare;    /* for another copy of a damaged frame, or one that is not like its neighbours */
    window *current;
    float *positions; /* of a frame whose record is packed */
    size_t position_capacity;
    float box[6];
    uint32_t *ids; /* of a slice */
    size_t id_capacity;
    int64_t bytes;

    int n_threads;
    pthread_t threads[MAX_THREADS];
    pthread_mutex_t mutex; /* over what follows */
    pthread_cond_t changed;
    size_t planned;        /* frames up to here are in a window that was taken */
    size_t taken, emptied; /* windows, counted from the threads' start */
    bool ready[MAX_RING];
    bool stopping;
};

/* Read the frames that a locator finds; it is the reader's from now on, also after an error. As bodhi_reader_open(). */
BODHI_CHECKED int reader_open(locator *from, const int64_t *numbers, int64_t n, const bodhi_read_options *options,
                              bodhi_reader **reader);

/* End the threads that read ahead. */
void reader_join(bodhi_reader *r);

enum fill_mode { FILL_CACHED /* only what the page cache has */, FILL_BUFFERED, FILL_DIRECT };

/* How many frames from `first` on make a window of `budget` bytes: at least one. */
size_t window_count(const bodhi_reader *r, size_t first, uint64_t budget);

/* Fill a window with the frames from `first` on. False: not cached (only with FILL_CACHED). */
bool window_fill(const bodhi_reader *r, window *w, size_t first, uint64_t budget, enum fill_mode mode);

/* Find out which part of the record of frame list[index] is needed. */
void window_estimate(bodhi_reader *r, window *w, size_t index);

/* Bytes of the record at `p` that such a window reads. */
uint64_t window_needs(const bodhi_reader *r, const window *w, const place *p);

/* The pieces of the record at `p` that such a window reads: *count of them. `whole` is scratch. */
const piece *window_pieces(const bodhi_reader *r, const window *w, const place *p, piece *whole, size_t *count);

void window_free(window *w);
