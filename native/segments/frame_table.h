/* The table of one segment as a file beside it: where its frames lie, sorted by number, as in memory (`place`). A
 * process keeps the first number of every block of places, and reads a block when it is asked for a frame in it. What
 * holds many frames is so held once a node, by the page cache, and not by every process. Nothing is mapped: a bad
 * sector is an error, and no signal. docs/formats.md describes the file in words.
 *
 * The file is made from the index and says nothing that is not there: one that is missing or damaged costs the time and
 * memory of reading the index. Every block has checksums. */
#pragma once

#include "segments/segment.h"

#define MAGIC_TABLE 0x50686442U /* "BdhP" */

enum {
    BLOCK_FRAMES = 1024,
    BLOCK_BYTES = 16, /* of what is kept of a block */
    PLACE_BYTES = 24,
    TOMBSTONE_ENTRY_BYTES = 24,
    TABLE_FACTS_BYTES = 56, /* behind the header that all files of a segment have */
    TABLE_HEAD_BYTES = SEGMENT_HEADER_BYTES + TABLE_FACTS_BYTES
};

/* The facts of a table, as they lie in its file. What is kept of the blocks, tombstones and the blocks follow. */
typedef struct {
    uint32_t crc; /* of the facts behind it, of blocks and tombstones; in this process the table is known by it */
    uint32_t zero;
    uint64_t covered, index_at, index_inode;
    uint64_t frames, high; /* high: their highest number */
    uint64_t n_tombstones;
} table_facts;

/* BLOCK_FRAMES frames that follow one another; the last block may have fewer. */
typedef struct {
    uint64_t first; /* number */
    uint32_t crc;   /* of its places */
    uint32_t zero;
} table_block;
_Static_assert(sizeof(table_facts) == TABLE_FACTS_BYTES && sizeof(table_block) == BLOCK_BYTES &&
                   sizeof(place) == PLACE_BYTES && sizeof(tombstone) == TOMBSTONE_ENTRY_BYTES,
               "they lie in files so");

struct sealed {
    char name[SEGMENT_NAME];
    uint32_t ordinal;
    bool torn;      /* a block cannot be read any more, or is not what it was: the frames in it are not found ... */
    bool *any_torn; /* ... and this is set, too */
    table_facts facts;
    table_block *blocks;
    size_t n_blocks;
    place *places;  /* of the block that was read last */
    size_t loaded;  /* its number, from 1 on; 0: none */
    uint64_t *dead; /* numbers of frames that died since, sorted */
    size_t n_dead, dead_capacity;
};

/* The name of a segment's table. */
void sealed_name(const segment *s, char name[SEGMENT_NAME]);

/* How large a table of what was found is. */
uint64_t sealed_bytes(const findings *content);

/* Write the table of a segment as far as its index was read. Its places are sorted here; of frames that are there twice
 * the later is kept. False: it was not written. */
bool sealed_write(int directory, const segment *s, findings *content);

/* Open the table of a segment of `size` bytes; its tombstones go to `content`. NULL: there is none that can be used, or
 * memory is out. */
sealed *sealed_open(int directory, const segment *s, uint32_t ordinal, uint64_t size, findings *content);
void sealed_close(sealed *t);

/* Delete the table of a segment of `size` bytes that tells of more: a power cut has lost what it tells of, and other
 * records will come to lie there. The caller holds the writer's lock. */
void sealed_unlink_stale(int directory, const segment *s, uint64_t size);

/* The first frame whose number is not below `number`, living or not. NULL: there is none; the place holds until the
 * table is asked again. */
const place *sealed_next(sealed *t, int directory, uint64_t number);

/* The frame of this very number. */
const place *sealed_find(sealed *t, int directory, uint64_t number);

/* Take a frame that was found for dead from now on. False: memory is out. */
bool sealed_kill(sealed *t, uint64_t number);

/* Set the bits of the living frames. */
void sealed_mark(sealed *t, int directory, const frame_selection *chosen, uint64_t *words);

static inline uint64_t sealed_living(const sealed *t) {
    return t->facts.frames - t->n_dead;
}
