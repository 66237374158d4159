/* Sets of atoms as bytes, and back: runs, or the ids themselves where those take less; see docs/formats.md. No I/O. */
#ifndef BODHI_IDS_H
#define BODHI_IDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { IDS_HEAD = 16, IDS_UNIT = 4 };

enum ids_coding { IDS_RUNS = 1, IDS_RAW = 4 };

/* Bytes that tell a set; a multiple of IDS_UNIT. */
typedef struct {
    unsigned char *bytes;
    size_t size, capacity;
} id_bytes;

/* Tell a set of ids that ascend. False: memory is out. */
bool ids_write(id_bytes *out, const uint32_t *ids, size_t n);

/* Take a set of just `n` ids, of which there is room at `ids`. False: damaged. */
bool ids_read(const unsigned char *data, size_t size, uint32_t *ids, size_t n);

#endif
