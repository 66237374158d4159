/* The table of one segment as a file beside it: where its frames lie, by number, in pages that are read when they are
 * asked for. What holds many frames is so held once a node, by the page cache, and not by every process; a process
 * knows which page has what. docs/formats.md describes the file in words.
 *
 * The file is made from the index and says nothing that is not there: one that is missing or damaged costs the time and
 * memory of reading the index. Every page has a checksum. */
#ifndef BODHI_FRAME_TABLE_H
#define BODHI_FRAME_TABLE_H

#include "segments/segment.h"
#include "segments/selection.h"

#define MAGIC_TABLE 0x46686442U /* "BdhF" */

enum {
    TABLE_PAGE = 8192,
    TABLE_PAGE_HEAD = 8,    /* checksum and zeros */
    TABLE_FACTS_BYTES = 80, /* behind the header that all files of a segment have */
    TABLE_HEAD_BYTES = SEGMENT_HEADER_BYTES + TABLE_FACTS_BYTES,
    RUN_BYTES = 32,
    TOMBSTONE_ENTRY_BYTES = 24,
    PLACE_BYTES = 16,
    PLACES_IN_PAGE = (TABLE_PAGE - TABLE_PAGE_HEAD) / PLACE_BYTES
};

/* Frames in the order of their numbers, `count` from number `first` on: `step` apart, and their places, in units of 64
 * bytes as in `place`, `stride` apart and else alike. What is 0 of these two is told by a page, for each; `offset` is
 * then its number. */
typedef struct {
    uint64_t first;
    uint32_t count, step, offset, stride, length;
    uint16_t head;
    uint8_t fields, zero;
} table_run;
_Static_assert(sizeof(table_run) == RUN_BYTES && sizeof(tombstone) == TOMBSTONE_ENTRY_BYTES, "they lie in files so");

struct sealed {
    segment_key key;
    char name[SEGMENT_NAME];
    uint32_t ordinal;
    uint64_t stamp; /* of this file among others of its name */
    uint64_t covered, index_at, index_inode;
    uint64_t frames, low, high;
    table_run *runs;
    size_t n_runs;
    uint32_t n_pages;
    uint32_t page; /* that was read last; 0: none */
    unsigned char *page_bytes;
    uint64_t *dead; /* frames that were dropped since: twice their numbers, and 1 if they were passed over; sorted */
    size_t n_dead, dead_capacity;
};

/* The facts of a table, as they lie in its file. */
typedef struct {
    uint32_t crc; /* of what follows it, of runs and tombstones */
    uint32_t n_pages;
    uint64_t stamp, covered, index_at, index_inode, frames, low, high, n_runs, n_tombstones;
} table_facts;
_Static_assert(sizeof(table_facts) == TABLE_FACTS_BYTES, "there is no padding");

/* The checksum of a page, which says also where it belongs. */
uint32_t table_page_checksum(uint64_t stamp, uint32_t number, const unsigned char page[TABLE_PAGE]);

/* The bytes of a segment's table, as far as its index was read, to be freed; NULL: memory is out. `places` are sorted
 * here; of frames that are there twice the later is kept. */
unsigned char *seal_layout(const segment *s, uint64_t stamp, place *places, size_t n, const tombstone *tombstones,
                           size_t n_tombstones, size_t *size);

/* The name of a segment's table. */
void sealed_name(const segment *s, char name[SEGMENT_NAME]);

/* Open the table of a segment of `size` bytes; its tombstones go to `found`. NULL: there is none that can be used, or
 * memory is out. */
sealed *sealed_open(int directory, const segment *s, uint32_t ordinal, uint64_t size, findings *found);
void sealed_close(sealed *t);

/* Delete the table of a segment of `size` bytes that tells of more: a power cut has lost what it tells of, and other
 * records will come to lie there. The caller holds the writer's lock. */
void sealed_unlink_stale(int directory, const segment *s, uint64_t size);

/* TORN: a page cannot be read any more, or is not what it was. */
enum sealed_answer { SEALED_FOUND, SEALED_ABSENT, SEALED_TORN };

/* Where a living frame lies. */
enum sealed_answer sealed_find(sealed *t, int directory, uint64_t number, place *copy);

/* Take a frame that was found for dead from now on: dropped, or passed over by this process alone. False: memory is
 * out. */
bool sealed_kill(sealed *t, uint64_t number, bool passed_over);

/* Whether the copy at a place (of which number and offset are asked) is there and was not dropped since; what this
 * process passes over is. */
enum sealed_answer sealed_keeps(sealed *t, int directory, const place *copy);

/* Set the bits of the living frames. False: torn, and some are not set. */
bool sealed_mark(const sealed *t, int directory, const frame_selection *chosen, uint64_t *words);

/* The lowest number from `from` on at which there may be a frame; false: there is none. */
bool sealed_next(const sealed *t, uint64_t from, uint64_t *number);

uint64_t sealed_memory(const sealed *t);

/* The first of the dead that is not below `number`, by its place among them. */
size_t sealed_dead_from(const sealed *t, uint64_t number);
bool sealed_is_dead(const sealed *t, uint64_t number);

static inline uint64_t sealed_living(const sealed *t) {
    return t->frames - t->n_dead;
}

#endif
