/* A writer inside the library: what it has gathered, what waits for its index entry, the segment that it holds. */
#ifndef BODHI_WRITER_H
#define BODHI_WRITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bodhi.h"
#include "codec/pack.h"
#include "store/dataset.h"
#include "write/claim.h"

enum { GATHER_BYTES = 1 << 20 }; /* small records are written together */

/* A record without an index entry yet. */
typedef struct {
    index_entry entry;
    uint64_t at; /* where the record is in the segment */
} pending_record;

struct bodhi_writer {
    bodhi_dataset *dataset;
    uint8_t kind;
    uint64_t segment_bytes;
    uint32_t block_atoms;
    bool packs;
    packer packer;
    bool poisoned;
    bool holding; /* `at` is valid */
    claim at;
    uint64_t written; /* what is in the file; the rest up to at.end is in `gathered` */
    uint64_t started; /* up to where the disk was told to write */
    unsigned char *gathered;
    size_t n_gathered;
    pending_record *pending; /* in the order of the segment */
    size_t n_pending, pending_capacity;
    size_t n_syncing; /* of these, the first, which somebody syncs just now */
    uint64_t highest; /* frame number pending */
    int unsynced[MAX_UNSYNCED];
    int n_unsynced;
    bool directory_unsynced;
    int64_t kept;
};

/* All functions return statuses as in bodhi.h. */

/* Turn errno of a failed call into a status; anything but a full disk or memory poisons the writer. */
int writer_failed(bodhi_writer *w, const char *call);

/* What a poisoned writer answers. */
int writer_fail_poisoned(void);

/* Give the segment back; what has no index entry is left for recovery to find. Its descriptor is kept until its bytes
 * are known to be on disk, if that is ever asked for. False: the bytes of an earlier segment could not be synced. */
bool writer_give_back(bodhi_writer *w);

/* Write what was gathered. On failure those records are undone: nobody has seen them. */
int writer_write_gathered(bodhi_writer *w);

/* Write what was gathered and the index entries. */
int writer_flush(bodhi_writer *w, bool durable);

/* Have a segment with room for `length` bytes. */
int writer_have_room(bodhi_writer *w, uint64_t length);

/* Note a record that waits for its index entry. False: memory is out. */
bool writer_add_pending(bodhi_writer *w, const index_entry *entry, uint64_t at);

/* Forget the pending records from `at` on. */
void writer_forget_pending(bodhi_writer *w, uint64_t at);

/* Where a record of `length` bytes is put together; NULL with the status set if it cannot be. */
unsigned char *writer_gather(bodhi_writer *w, uint64_t length, int *status);

#endif
