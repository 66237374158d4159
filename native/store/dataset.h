/* A dataset inside the library: its directory, its segments and the index in memory. */
#ifndef BODHI_DATASET_H
#define BODHI_DATASET_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "bodhi.h"
#include "store/segment.h"
#include "store/table.h"

struct bodhi_store {
    int fd; /* of the directory */
    int flags;
    char *path;
    uint8_t identity[16];
};

enum { DIRECTORY_NAME = 34, MAX_NAME = 4096, MAX_OPEN_SEGMENTS = 64 };

struct bodhi_dataset {
    bodhi_store *store;
    int fd; /* of the directory */
    char directory[DIRECTORY_NAME];
    char *name;
    unsigned char *generation;
    size_t generation_bytes;
    segment_key key; /* segment: 0 */

    pthread_mutex_t mutex; /* over all that follows */
    segment **segments;    /* positions are for good; those that are gone stay as such */
    size_t n_segments, segment_capacity;
    uint32_t *by_id; /* positions, sorted by kind and id */
    table tables[2]; /* by kind */
    tombstone *tombstones[2];
    size_t n_tombstones[2]; /* those that wait for their segment */
    unsigned open_segments;
    unsigned readers;
    struct reader_memory *left; /* by a reader that is gone; NULL: nothing */
    uint64_t clock;
    unsigned refused_version;
    uint64_t scanned;
};

static inline bool is_read_only(const bodhi_dataset *dataset) {
    return (dataset->store->flags & BODHI_READ_ONLY) != 0;
}

/* Everything below: the caller holds the mutex, unless said otherwise. Statuses as in bodhi.h. */

/* The segment of this kind and id, or NULL. */
segment *dataset_find(const bodhi_dataset *dataset, unsigned kind, uint64_t id, uint32_t *ordinal);

/* Add a segment that is not there yet; NULL if memory is out. */
segment *dataset_add(bodhi_dataset *dataset, const segment *made, uint32_t *ordinal);

/* Load what is new in one segment into the table. Returns an errno. */
int dataset_load(bodhi_dataset *dataset, uint32_t ordinal, bool writing);

/* Forget a segment that was deleted, and its frames. */
void dataset_forget(bodhi_dataset *dataset, uint32_t ordinal);

/* Put tombstones into force. `n` of one kind; those that match nothing yet are kept for later. False: memory is out. */
bool dataset_bury(bodhi_dataset *dataset, unsigned kind, const tombstone *dead, size_t n);

/* A descriptor for reading a segment, which is then not evicted before dataset_release(). -1 and errno: ENOENT if it is
 * gone. These two take the mutex themselves. */
int dataset_hold(bodhi_dataset *dataset, uint32_t ordinal, bool direct);
void dataset_release(bodhi_dataset *dataset, uint32_t ordinal);

/* Free what a reader left. Of reader.c; for the end of a dataset. */
void reader_memory_free(struct reader_memory *memory);

/* A reader goes; with the last one go the descriptors, so that segments may be evicted. Takes the mutex itself. */
void dataset_reader_left(bodhi_dataset *dataset);

/* Let the disk begin with what was appended, if that is at least `least` bytes, so that a durable flush waits less.
 * Like the other functions of a writer, from its thread; takes no mutex. */
void writer_start_writing(bodhi_writer *writer, uint64_t least);

/* A durable flush in steps, so that more is appended while another thread syncs: what was appended before the first
 * step becomes visible by the last, with whether the sync succeeded. A status below 0 of the last step may have undone
 * what was appended since the first. Another flush in between is not allowed. */
enum { MAX_UNSYNCED = 8 }; /* full segments that wait for the next durable flush */
typedef struct {
    int fds[MAX_UNSYNCED + 2]; /* to be synced and closed */
    int n;
} sync_list;
int writer_begin_flush(bodhi_writer *writer, sync_list *list);
bool sync_listed(sync_list *list);
int writer_end_flush(bodhi_writer *writer, bool synced);

#endif
