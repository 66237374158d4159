/* Layout of what Bodhi writes: pure functions over bytes, no I/O. docs/formats.md describes the same in words.
 *
 * All numbers are little-endian. Every header begins with a prefix that no later version will change:
 *   magic u32 | version u16 | type u16 | bytes u32 | crc u32
 * where `bytes` is the length of header and tables together and `crc` the CRC32C of them, with crc itself taken as 0.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    FORMAT_VERSION = 1,
    PREFIX_BYTES = 16,
    UNIT = 64,                 /* records begin at multiples of this, and so do payloads */
    SEGMENT_HEADER_BYTES = 64, /* of segment and index files */
    RECORD_HEADER_BYTES = 112, /* before the block table */
    BLOCK_ENTRY_BYTES = 8,
    TOMBSTONE_BYTES = 128,
    RECORD_ATOMS_AT = 72, /* where in a record its number of atoms is */
    RECORD_ATOMS_BYTES = 4,
    ENTRY_BYTES = 32, /* of the index */
    IDENTITY_BYTES = 64,
    FIELD_COUNT = 4,
    FIELD_IDS = 3, /* which atoms a slice has (ids.h), told in its first block; the others are empty */
    VECTOR_FIELDS = 7,
    ENCODING_RAW = 0,
    ENCODING_PACKED = 1 /* positions as packed.h says, the other fields raw */
};

enum record_type { RECORD_FRAME = 1, RECORD_TOMBSTONE = 2 };
enum entry_type { ENTRY_FRAME = 1, ENTRY_TOMBSTONE = 2, ENTRY_HOLE = 3 };

#define MAGIC_IDENTITY 0x49686442U /* "BdhI" */
#define MAGIC_META     0x4D686442U /* "BdhM" */
#define MAGIC_SEGMENT  0x53686442U /* "BdhS" */
#define MAGIC_INDEX    0x58686442U /* "BdhX" */
#define MAGIC_RECORD   0x52686442U /* "BdhR" */

/* What a file belongs to, as it lies in its header; repeated in every record. */
typedef struct {
    uint64_t segment;    /* random, also in the file's name */
    uint64_t dataset;    /* hash of the dataset's name */
    uint64_t generation; /* hash of its generation */
} segment_key;

/* A parsed record header, up to `n_blocks` as it lies behind the record's prefix. */
typedef struct {
    uint64_t number;
    double time;
    uint64_t dataset, generation, segment; /* whose it is */
    uint64_t offset;                       /* of the record in its segment */
    uint64_t payload_bytes;                /* without padding */
    uint32_t n_atoms, block_atoms;
    uint8_t kind; /* enum bodhi_kind */
    uint8_t fields, encoding;
    uint8_t has_box; /* 0 or 1 */
    float box[6];
    uint32_t n_blocks;
    enum record_type type;
    uint64_t ids_bytes;                     /* of the payload, those that tell which atoms it has; 0: a whole frame */
    uint32_t head_bytes;                    /* header and block table, padded */
    uint64_t length;                        /* of the whole record, padded */
    uint64_t target_segment, target_offset; /* of a tombstone */
} record_header;

/* As it lies in an index, where its checksum follows. */
typedef struct {
    uint64_t number;     /* of a hole: 0 */
    uint64_t offset;     /* of the record; of a tombstone: target's offset */
    uint64_t length;     /* of the record; of a tombstone: target's segment */
    uint8_t type;        /* enum entry_type */
    uint8_t fields;      /* the low four bits; the high four are the encoding */
    uint16_t head_units; /* 0xFFFF: that or larger */
} index_entry;

/* FOREIGN: valid, but of another segment or dataset, or of another version. */
enum parsed { PARSED, PARSED_SHORT, PARSED_DAMAGED, PARSED_VERSION, PARSED_FOREIGN };

static inline uint64_t round_up(uint64_t value, uint64_t unit) {
    return (value + unit - 1) / unit * unit;
}

static inline unsigned count_fields(unsigned fields) {
    return (fields & 1) + (fields >> 1 & 1) + (fields >> 2 & 1) + (fields >> 3 & 1);
}

/* Hash of names for directories and keys: FNV-1a of 64 bits with a final mix; stable for good. */
uint64_t hash_bytes(const void *data, size_t size);

void write_identity(unsigned char out[IDENTITY_BYTES], const uint8_t identity[16]);
enum parsed parse_identity(const unsigned char *data, size_t size, uint8_t identity[16], unsigned *version);

/* Header of a segment (MAGIC_SEGMENT) or index file (MAGIC_INDEX). */
void write_file_header(unsigned char out[SEGMENT_HEADER_BYTES], uint32_t magic, const segment_key *key, unsigned kind);
enum parsed parse_file_header(const unsigned char *data, size_t size, uint32_t magic, const segment_key *key,
                              unsigned kind);

/* What the meta file says: whose frames a directory has. */
typedef struct {
    const char *name;
    const void *generation;
    size_t name_bytes, generation_bytes;
    unsigned version;
} meta_names;

/* Write the meta file; returns its length. */
size_t write_meta(unsigned char *out, const char *name, size_t name_bytes, const void *generation,
                  size_t generation_bytes);
/* The names point into data. */
enum parsed parse_meta(const unsigned char *data, size_t size, meta_names *meta);

/* The index entry of a record. */
index_entry entry_of(const record_header *header);

void write_entry(unsigned char out[ENTRY_BYTES], const index_entry *entry, uint64_t segment);
enum parsed parse_entry(const unsigned char data[ENTRY_BYTES], index_entry *entry, uint64_t segment);

/* Complete n_blocks, head_bytes, length, and payload_bytes where the encoding is raw. False: the frame is too large. */
bool layout_record(record_header *header);

/* A field to be written, or NULL. `sizes` are those of its blocks, one after the other in `data`; NULL: raw. */
typedef struct {
    const void *data;
    const uint32_t *sizes;
    uint64_t bytes; /* all blocks together */
} field_blocks;

/* Write the head of a frame record with the checksums of its blocks. `out` has head_bytes. */
void write_record_head(unsigned char *out, const record_header *header, const segment_key *key,
                       const field_blocks fields[FIELD_COUNT]);
void write_tombstone(unsigned char out[TOMBSTONE_BYTES], const record_header *header, const segment_key *key);

/* Parse the record head that is `offset` bytes into its segment. SHORT: *needed bytes. Any encoding is parsed. */
enum parsed parse_record(const unsigned char *data, size_t size, const segment_key *key, uint64_t offset,
                         record_header *header, size_t *needed);

/* Check all blocks of a record, of any encoding, that is there completely. Returns how many are right before the first
 * that is not: n_blocks if all are. */
uint32_t check_payload(const unsigned char *record, const record_header *header);

/* What the block table says of one block; `index` counts the blocks of all fields. The head must be there. */
typedef struct {
    uint32_t bytes, crc;
} block_entry;
block_entry read_block_entry(const unsigned char *record, uint32_t index);
bool check_block(const void *data, block_entry entry);

static inline uint32_t blocks_per_field(const record_header *header) {
    return header->n_blocks / count_fields(header->fields);
}

/* Atoms in block `block` of a field. */
static inline uint32_t atoms_in_block(const record_header *header, uint32_t block) {
    uint64_t left = header->n_atoms - (uint64_t)block * header->block_atoms;
    return left < header->block_atoms ? (uint32_t)left : header->block_atoms;
}

static inline uint64_t field_bytes(const record_header *header) {
    return (uint64_t)header->n_atoms * 12;
}

/* The bytes that tell the atoms of a slice whose head is at `record`: where they begin, from its beginning, and how
 * many they are; 0: it tells none. */
uint64_t slice_ids_at(const unsigned char *record, const record_header *header, uint32_t *size);
