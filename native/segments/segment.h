/* Segments: files of records that only grow, and their indexes. Loading what is valid, recovering what was torn. */
#pragma once

#include <sys/types.h>

#include "segments/record.h"
#include "segments/table.h"

enum { SEGMENT_NAME = 32 };

typedef struct sealed sealed;

/* A segment as a dataset knows it. `covered` is the end of what was loaded into the table. */
typedef struct {
    segment_key key;
    uint8_t kind;
    char name[SEGMENT_NAME];       /* of the .seg file */
    char index_name[SEGMENT_NAME]; /* of the .idx file */
    uint64_t covered;
    uint64_t index_covered; /* the end of what the index entries read so far speak of */
    uint64_t index_at;      /* how far the index was read; 0: not at all */
    uint64_t looked_at;     /* the segment's size when its tail was last scanned */
    ino_t index_inode;
    bool checked;        /* the segment's header was looked at */
    bool damaged_header; /* read as any other, but not written to */
    bool refused;        /* of another version, or misplaced: left alone */
    bool frozen;         /* was not synced: read, but never written */
    bool incomplete;     /* its index lacks something and should be rebuilt */
    bool gone;
    bool doubtful;     /* a sync of it has failed: what is read from it may not be on disk, and is not acknowledged */
    int fd, direct_fd; /* for reading; -1: closed */
    unsigned users;
    uint64_t used_at;
    uint64_t live;  /* frames in the table */
    sealed *sealed; /* where its frames up to `covered` as it then was lie, but for those in the table; NULL: nowhere
                       else */
    uint32_t torn;  /* the checksum of a sealed table that was found torn, and is not used any more */
} segment;

typedef struct {
    uint64_t segment, offset; /* of the record that is dropped */
    uint64_t number;
} tombstone;

/* What loading has found, in the order of the segment. */
typedef struct findings {
    place *places;
    size_t n_places, place_capacity;
    tombstone *tombstones;
    size_t n_tombstones, tombstone_capacity;
    uint64_t scanned; /* bytes */
    uint64_t lost;    /* bytes without a valid record before others */
} findings;

void findings_free(findings *content);

/* Called for every valid record, in order. False ends the scan. */
typedef bool scan_visitor(void *context, const record_header *header);

typedef struct {
    uint64_t end;     /* after the last valid record, else `from` */
    uint64_t skipped; /* bytes before that without a valid record */
    int error;        /* errno that ended the scan early, or 0 */
} scan_result;

/* Visit the valid records in [from, to), headers and payloads checked; damaged stretches are passed over. */
scan_result scan_segment(int fd, const segment_key *key, uint64_t from, uint64_t to, scan_visitor *visit,
                         void *context);

/* Fill in key, kind and names of the segment of a name ("n-0123456789abcdef.seg"); false if no segment is called so. */
bool segment_from_name(segment *s, const char *name, uint64_t dataset, uint64_t generation);
void segment_name(segment *s, unsigned kind, uint64_t id);

/* The same for a new segment; ids grow with time. False and errno: there are no random bytes. */
bool segment_new_name(segment *s, unsigned kind);

/* WRITING: the caller itself holds the writer's lock. UNSEALED: what a sealed table would say is wanted, too. BEYOND:
 * so are frames that the index tells of behind the segment's end. */
enum { LOAD_WRITING = 1, LOAD_UNSEALED = 2, LOAD_BEYOND = 4 };

/* Load what the table does not know yet, what was sealed first, as s->sealed. Returns an errno; ENOENT also sets
 * s->gone. */
int segment_load(int directory, segment *s, uint32_t ordinal, unsigned how, findings *content);

/* Rebuild the index and cut what follows the last valid record. Needs the writer's lock on `fd`. Returns an errno. */
int segment_recover(int directory, segment *s, int fd);
