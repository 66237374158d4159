/* The sealed table of one segment, a file beside it that docs/formats.md describes: where its frames lie, sorted by
 * number, as they are in memory, so that a node has them once, in its page cache. It says nothing that the index does
 * not say: one that is missing or damaged costs the time and memory of reading the index. */
#ifndef BODHI_FRAME_TABLE_H
#define BODHI_FRAME_TABLE_H

#include "segments/segment.h"

#define MAGIC_TABLE 0x50686442U /* "BdhP" */

enum { TABLE_HEAD_BYTES = 128 };

static inline uint64_t sealed_bytes(uint64_t frames) {
    return TABLE_HEAD_BYTES + frames * sizeof(place);
}

/* The name of a segment's table. */
void sealed_name(const segment *s, char name[SEGMENT_NAME]);

/* Write the table of a segment as far as its index was read; `places` are sorted. */
bool sealed_write(int directory, const segment *s, const place *places, size_t n);

/* Map the table of a segment of `size` bytes, which then is known as far as that. False: none can be used. */
bool sealed_open(int directory, segment *s, uint32_t ordinal, uint64_t size, sealed_run *run);

/* Delete a table of more than the `size` bytes of its segment, which a power cut has lost. Needs the writer's lock. */
void sealed_unlink_stale(int directory, const segment *s, uint64_t size);

#endif
