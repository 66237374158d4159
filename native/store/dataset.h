/* A dataset inside the library: its directory, its segments and the index in memory. */
#pragma once

#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>

#include "bodhi.h"
#include "segments/frame_table.h"
#include "segments/segment.h"
#include "segments/table.h"

/* Beside its frames a dataset has this file if its origin is known (himach/io/datasets/attachment.py). */
#define ORIGIN_FILE "x-origin.json"

struct bodhi_store {
    int fd; /* of the directory */
    int flags;
    char *path;
    uint8_t identity[16];
    uint64_t quota; /* bytes; 0: none */
};

enum { DIRECTORY_NAME = 34, MAX_NAME = 4096, META_BYTES = PREFIX_BYTES + 8 + 2 * MAX_NAME, MAX_OPEN_SEGMENTS = 64 };

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
    size_t id_capacity;
    table tables[2];                      /* by kind: what is not sealed */
    size_t hint[2];                       /* the sealed segment in which a frame was found last */
    bool torn;                            /* a sealed table cannot be read any more ... */
    void (*mend)(bodhi_dataset *dataset); /* ... so that this is to be called: dataset_mend() */
    tombstone *tombstones[2];
    size_t n_tombstones[2], tombstone_capacity[2]; /* those that wait for their segment */
    unsigned open_segments;
    unsigned readers;
    uint64_t clock;
    uint64_t scanned;
    char *author;       /* NULL: not known here */
    bool removed;       /* there is no directory of its name: it was deleted, and may come back */
    struct stat listed; /* the directory when it was listed last ... */
    struct timespec listed_at;
    /* Directories of its name are numbered as they are opened: this one; the last whose name is known to be on disk. */
    atomic_uint directory_number, rooted;
};

static inline bool is_read_only(const bodhi_dataset *dataset) {
    return (dataset->store->flags & BODHI_READ_ONLY) != 0;
}

/* Everything below: the caller holds the mutex, unless said otherwise. Statuses as in bodhi.h. */

/* --- catalog.c: the segments that a dataset knows ----------------------------------------------------------------- */

/* The segment of this kind and id, or NULL. */
segment *dataset_find(const bodhi_dataset *dataset, unsigned kind, uint64_t id, uint32_t *ordinal);

/* Add a segment that is not there yet; NULL if memory is out. */
segment *dataset_add(bodhi_dataset *dataset, const segment *made, uint32_t *ordinal);

/* Load what is new in one segment into the table. Returns an errno. */
int dataset_load(bodhi_dataset *dataset, uint32_t ordinal, bool writing);

/* Forget a segment that was deleted, and its frames. */
void dataset_forget(bodhi_dataset *dataset, uint32_t ordinal);

/* Make the directory again if it was deleted, and take in what there is. */
int dataset_restore(bodhi_dataset *dataset);

/* Refresh if segments have come or gone since the last time, or that was half a second ago. Takes the mutex. */
int dataset_keep_up(bodhi_dataset *dataset);

/* Refresh; if the directory is gone, make it again (`create`) or fail with NOT_FOUND. Takes the mutex. */
int dataset_reopen(bodhi_dataset *dataset, bool create);

/* Where a sealed table was found torn, read everything anew without it: what was dropped is said by others' indexes.
 * What is in copies.c does so by itself, but for dataset_is_dead() and dataset_kill(). */
void dataset_mend(bodhi_dataset *dataset);

/* --- author.c ----------------------------------------------------------------------------------------------------- */

/* Let the frames be those of `identity`, if nobody's, or (`alone`) there are none. CONFLICT. Takes the mutex. */
int dataset_claim(bodhi_dataset *dataset, const char *identity, bool alone);

/* Check that no trajectory has the name of what is to be pushed, or of whose slices: CONFLICT. Takes no mutex, nor do
 * the next three. */
int store_refuse_staged(const bodhi_store *store, const char *name);

/* Be alone in giving a dataset its name, until the descriptor is closed. -1 and errno; EWOULDBLOCK: not in a second. */
int store_lock(const bodhi_store *store);

/* Check that the frames are still those of who claimed them: while there were none, another may have written some. */
int dataset_check_author(bodhi_dataset *dataset);

/* Say so again in a directory that was made anew. */
int dataset_restore_author(const bodhi_dataset *dataset);

/* Write the number of its launch into a generation of slices of dataset `name`, and leave any other as it is. It is the
 * number that slices of the same mark have, unless a later launch is known to supersede them; else the next one. Two
 * launches that begin at the same moment may get the same. Takes no mutex. Errors: SYSTEM. */
int store_number_launch(const bodhi_store *store, const char *name, void *generation, size_t bytes);

/* --- meta.c: these take no mutex ---------------------------------------------------------------------------------- */

/* Note that the dataset is used: those that were not for longest are evicted first. */
void dataset_use(const bodhi_dataset *dataset);

/* Make the directory if it is not there. */
int dataset_make_directory(const bodhi_dataset *dataset);

/* Write the meta file, which may be there, and must be if there are frames. */
int dataset_write_meta(const bodhi_dataset *dataset, bool replace);

/* Whether directories of datasets are called so. */
bool is_dataset(const char *name);

/* The next directory of a dataset whose name has this hash, in the store's list; NULL: there is none. */
const char *store_next_directory(DIR *entries, uint64_t name);

/* Read the meta file in a dataset's directory into `data`. SHORT: there is none. */
enum parsed dataset_read_meta(int directory, unsigned char data[META_BYTES], meta_names *meta);

/* Sync the names of the dataset's files, and once those of its directories, whoever made them. False and errno. */
bool dataset_sync_names(bodhi_dataset *dataset);

/* --- copies.c ----------------------------------------------------------------------------------------------------- */

/* Have a sealed table, or none (NULL), in place of the one that a segment has. */
void dataset_set_sealed(bodhi_dataset *dataset, segment *s, sealed *t);

/* How far the copies of a frame were looked through; zeros at first. */
typedef struct {
    size_t in_table, segment;
} copy_cursor;

/* The next living copy of a frame; false: there is none. */
bool dataset_next_copy(bodhi_dataset *dataset, unsigned kind, uint64_t number, copy_cursor *at, place *copy);

/* The copy of a frame to be read: the first living one, natives before aliens. Its kind, or -1. */
int dataset_choose_copy(bodhi_dataset *dataset, uint64_t number, place *copy);

/* Whether the copy at a place (its number, segment and offset count) is known, and dead. */
bool dataset_is_dead(bodhi_dataset *dataset, unsigned kind, const place *copy);

/* Take that copy for dead from now on. False: none lives there. */
bool dataset_kill(bodhi_dataset *dataset, unsigned kind, const place *copy);

/* Nobody in this process reads the copy from now on: it was found damaged. */
void dataset_pass_over(bodhi_dataset *dataset, unsigned kind, const place *copy);

/* Set the bits of the frames of one kind. */
void dataset_mark(bodhi_dataset *dataset, unsigned kind, const frame_selection *chosen, uint64_t *words);

/* Living frame numbers >= `from`, each once, up to `capacity` of them; how many there are in all; whether there are
 * none, for which no table is read. */
size_t dataset_numbers(bodhi_dataset *dataset, unsigned kind, uint64_t from, uint64_t *numbers, size_t capacity);
uint64_t dataset_living(bodhi_dataset *dataset, unsigned kind);
bool dataset_is_vacant(const bodhi_dataset *dataset, unsigned kind);

/* The frames of one kind between `low` and `high`, ascending; the number of runs, or -1: there is no room for all. */
int64_t dataset_runs(bodhi_dataset *dataset, unsigned kind, uint64_t low, uint64_t high, bodhi_run *runs,
                     int64_t capacity);

/* --- descriptors.c: these take the mutex themselves ------------------------------------------------------------- */

/* A descriptor for reading a segment, not evicted before dataset_unpin(). -1 and errno: ENOENT if it is gone. */
int dataset_pin(bodhi_dataset *dataset, uint32_t ordinal, bool direct);
void dataset_unpin(bodhi_dataset *dataset, uint32_t ordinal);

/* A descriptor of a place's segment, the caller's to close; while open, the segment stays. -1 if it is gone. */
int dataset_share_segment(const bodhi_dataset *dataset, const bodhi_place *at);

/* The same of a segment that is known, which is forgotten if it is gone. -1 and errno. The caller holds the mutex. */
int dataset_share(bodhi_dataset *dataset, uint32_t ordinal);

/* Sync a segment that another may have written, and its name. False: gone, or a sync has failed; never tried again. */
bool dataset_sync_segment(bodhi_dataset *dataset, uint32_t ordinal);

/* A sync of the segment has failed. */
void dataset_doubt(bodhi_dataset *dataset, uint32_t ordinal);

/* A reader goes; with the last one go the descriptors, so that segments may be evicted. */
void dataset_remove_reader(bodhi_dataset *dataset);

/* --- eviction.c: what lies in a store, by its files alone --------------------------------------------------------- */

/* As bodhi_survey(), of the store whose directory is open as `store`. */
int survey_store(int store, bodhi_usage *usage, bodhi_stored_segment **segments, size_t *n);
