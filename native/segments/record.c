/* Layout of records, headers and index entries; see record.h. */
#include "segments/record.h"

#include <string.h>

#include "base/bytes.h"
#include "base/crc32c.h"

/* Headers of other versions are checked up to this length. */
enum { COMMON_BYTES = offsetof(record_header, n_blocks) + sizeof(uint32_t) };
_Static_assert(PREFIX_BYTES + COMMON_BYTES == RECORD_HEADER_BYTES, "there is no padding");
_Static_assert(PREFIX_BYTES + offsetof(record_header, n_atoms) == RECORD_ATOMS_AT, "where others read it");
_Static_assert(offsetof(index_entry, head_units) + sizeof(uint16_t) == ENTRY_BYTES - 4, "its checksum follows");
_Static_assert(PREFIX_BYTES + sizeof(segment_key) <= SEGMENT_HEADER_BYTES && sizeof(segment_key) == 24, "as in files");

/* --- Numbers ----------------------------------------------------------------------------------------------------- */

uint64_t hash_bytes(const void *data, size_t size) {
    const unsigned char *bytes = data;
    uint64_t hash = 0xCBF29CE484222325U;
    for (size_t i = 0; i < size; i++) {
        hash = (hash ^ bytes[i]) * 0x100000001B3U;
    }
    hash = (hash ^ hash >> 33) * 0xFF51AFD7ED558CCDU;
    hash = (hash ^ hash >> 33) * 0xC4CEB9FE1A85EC53U;
    return hash ^ hash >> 33;
}

/* --- Prefix ------------------------------------------------------------------------------------------------------ */

static uint32_t checksum_of_header(const unsigned char *data, size_t bytes) {
    static const unsigned char zeros[4];
    uint32_t crc = bodhi_crc32c(0, data, 12);
    crc = bodhi_crc32c(crc, zeros, 4);
    return bodhi_crc32c(crc, data + PREFIX_BYTES, bytes - PREFIX_BYTES);
}

static void write_prefix(unsigned char *out, uint32_t magic, unsigned type, size_t bytes) {
    put32(out, magic);
    put16(out + 4, FORMAT_VERSION);
    put16(out + 6, (uint16_t)type);
    put32(out + 8, (uint32_t)bytes);
    put32(out + 12, checksum_of_header(out, bytes));
}

/* *bytes is set to the header's length unless damaged or short, *version to its version unless damaged. */
static enum parsed check_prefix(const unsigned char *data, size_t size, uint32_t magic, uint32_t *bytes,
                                unsigned *version) {
    if (size < PREFIX_BYTES) {
        return PARSED_SHORT;
    }
    *bytes = get32(data + 8);
    if (get32(data) != magic || *bytes < PREFIX_BYTES) {
        return PARSED_DAMAGED;
    }
    if (*bytes > size) {
        return PARSED_SHORT;
    }
    if (get32(data + 12) != checksum_of_header(data, *bytes) && !bodhi_bypass_checksums) {
        return PARSED_DAMAGED;
    }
    *version = get16(data + 4);
    return *version == FORMAT_VERSION ? PARSED : PARSED_VERSION;
}

/* Check the prefix of a header of fixed length that is there completely: too short is damage. */
static enum parsed check_whole(const unsigned char *data, size_t size, uint32_t magic, uint32_t length,
                               unsigned *version) {
    uint32_t bytes;
    enum parsed parsed = check_prefix(data, size, magic, &bytes, version);
    if (parsed == PARSED_SHORT || (parsed == PARSED && bytes != length)) {
        return PARSED_DAMAGED;
    }
    return parsed;
}

/* --- Identity, meta, file headers -------------------------------------------------------------------------------- */

void write_identity(unsigned char out[IDENTITY_BYTES], const uint8_t identity[16]) {
    memset(out, 0, IDENTITY_BYTES);
    memcpy(out + 16, identity, 16);
    write_prefix(out, MAGIC_IDENTITY, 0, IDENTITY_BYTES);
}

enum parsed parse_identity(const unsigned char *data, size_t size, uint8_t identity[16], unsigned *version) {
    enum parsed parsed = check_whole(data, size, MAGIC_IDENTITY, IDENTITY_BYTES, version);
    if (parsed == PARSED) {
        memcpy(identity, data + 16, 16);
    }
    return parsed;
}

void write_file_header(unsigned char out[SEGMENT_HEADER_BYTES], uint32_t magic, const segment_key *key, unsigned kind) {
    memset(out, 0, SEGMENT_HEADER_BYTES);
    memcpy(out + PREFIX_BYTES, key, sizeof *key);
    write_prefix(out, magic, kind, SEGMENT_HEADER_BYTES);
}

enum parsed parse_file_header(const unsigned char *data, size_t size, uint32_t magic, const segment_key *key,
                              unsigned kind) {
    unsigned version;
    enum parsed parsed = check_whole(data, size, magic, SEGMENT_HEADER_BYTES, &version);
    if (parsed == PARSED_VERSION ||
        (parsed == PARSED && (memcmp(data + PREFIX_BYTES, key, sizeof *key) != 0 || get16(data + 6) != kind))) {
        return PARSED_FOREIGN;
    }
    return parsed;
}

size_t write_meta(unsigned char *out, const char *name, size_t name_bytes, const void *generation,
                  size_t generation_bytes) {
    size_t bytes = PREFIX_BYTES + 8 + name_bytes + generation_bytes;
    put32(out + 16, (uint32_t)name_bytes);
    put32(out + 20, (uint32_t)generation_bytes);
    memcpy(out + 24, name, name_bytes);
    if (generation_bytes > 0) {
        memcpy(out + 24 + name_bytes, generation, generation_bytes);
    }
    write_prefix(out, MAGIC_META, 0, bytes);
    return bytes;
}

enum parsed parse_meta(const unsigned char *data, size_t size, meta_names *meta) {
    uint32_t bytes;
    enum parsed parsed = check_prefix(data, size, MAGIC_META, &bytes, &meta->version);
    if (parsed == PARSED_VERSION) {
        return parsed;
    }
    if (parsed != PARSED || bytes < PREFIX_BYTES + 8) {
        return PARSED_DAMAGED;
    }
    meta->name_bytes = get32(data + 16);
    meta->generation_bytes = get32(data + 20);
    meta->name = (const char *)(data + 24);
    meta->generation = data + 24 + meta->name_bytes;
    return meta->name_bytes + meta->generation_bytes + PREFIX_BYTES + 8 == bytes ? PARSED : PARSED_DAMAGED;
}

/* --- Index entries ----------------------------------------------------------------------------------------------- */

static uint32_t checksum_of_entry(const unsigned char *data, uint64_t segment) {
    unsigned char seed[8];
    put64(seed, segment); /* an entry of another segment's index does not pass */
    return bodhi_crc32c(bodhi_crc32c(0, seed, sizeof seed), data, ENTRY_BYTES - 4);
}

index_entry entry_of(const record_header *header) {
    if (header->type == RECORD_TOMBSTONE) {
        return (index_entry){.type = ENTRY_TOMBSTONE,
                             .number = header->number,
                             .offset = header->target_offset,
                             .length = header->target_segment};
    }
    uint32_t units = header->head_bytes / UNIT;
    return (index_entry){.type = ENTRY_FRAME,
                         .fields = (uint8_t)(header->fields | header->encoding << 4),
                         .head_units = units < UINT16_MAX ? (uint16_t)units : UINT16_MAX,
                         .number = header->number,
                         .offset = header->offset,
                         .length = header->length};
}

void write_entry(unsigned char out[ENTRY_BYTES], const index_entry *entry, uint64_t segment) {
    memcpy(out, entry, ENTRY_BYTES - 4);
    put32(out + ENTRY_BYTES - 4, checksum_of_entry(out, segment));
}

enum parsed parse_entry(const unsigned char data[ENTRY_BYTES], index_entry *entry, uint64_t segment) {
    if (get32(data + ENTRY_BYTES - 4) != checksum_of_entry(data, segment) && !bodhi_bypass_checksums) {
        return PARSED_DAMAGED;
    }
    memcpy(entry, data, ENTRY_BYTES - 4);
    if (entry->type == ENTRY_TOMBSTONE) {
        return PARSED;
    }
    bool fits = entry->length > 0 && entry->offset <= INT64_MAX && entry->length <= INT64_MAX - entry->offset;
    bool known = entry->type == ENTRY_FRAME || entry->type == ENTRY_HOLE;
    return known && fits && entry->offset % UNIT == 0 && entry->length % UNIT == 0 ? PARSED : PARSED_DAMAGED;
}

/* --- Records ----------------------------------------------------------------------------------------------------- */

/* What belongs together: false if the numbers of a header do not. */
bool layout_record(record_header *header) {
    if (header->n_atoms == 0 || header->block_atoms == 0 || (header->fields & 1) == 0 ||
        header->fields >= 1U << FIELD_COUNT) {
        return false;
    }
    uint64_t fields = count_fields(header->fields);
    uint64_t blocks = fields * (((uint64_t)header->n_atoms + header->block_atoms - 1) / header->block_atoms);
    if (blocks > (UINT32_MAX - RECORD_HEADER_BYTES - UNIT) / BLOCK_ENTRY_BYTES) {
        return false;
    }
    header->n_blocks = (uint32_t)blocks;
    if (header->encoding == ENCODING_RAW) {
        header->payload_bytes = count_fields(header->fields & VECTOR_FIELDS) * field_bytes(header) + header->ids_bytes;
    }
    header->head_bytes = (uint32_t)round_up(RECORD_HEADER_BYTES + blocks * BLOCK_ENTRY_BYTES, UNIT);
    header->length = header->head_bytes + round_up(header->payload_bytes, UNIT);
    return true;
}

static void write_common(unsigned char *out, const record_header *header, const segment_key *key) {
    record_header keyed = *header;
    keyed.dataset = key->dataset;
    keyed.generation = key->generation;
    keyed.segment = key->segment;
    memcpy(out + PREFIX_BYTES, &keyed, COMMON_BYTES);
}

void write_record_head(unsigned char *out, const record_header *header, const segment_key *key,
                       const field_blocks fields[FIELD_COUNT]) {
    memset(out, 0, header->head_bytes);
    write_common(out, header, key);
    unsigned char *entry = out + RECORD_HEADER_BYTES;
    for (unsigned field = 0; field < FIELD_COUNT; field++) {
        const unsigned char *data = fields[field].data;
        for (uint32_t block = 0; data != NULL && block < blocks_per_field(header); block++) {
            const uint32_t *sizes = fields[field].sizes;
            size_t bytes = sizes != NULL ? sizes[block] : (size_t)atoms_in_block(header, block) * 12;
            put32(entry, (uint32_t)bytes);
            put32(entry + 4, bodhi_crc32c(0, data, bytes));
            entry += BLOCK_ENTRY_BYTES;
            data += bytes;
        }
    }
    write_prefix(out, MAGIC_RECORD, RECORD_FRAME, RECORD_HEADER_BYTES + (size_t)header->n_blocks * BLOCK_ENTRY_BYTES);
}

void write_tombstone(unsigned char out[TOMBSTONE_BYTES], const record_header *header, const segment_key *key) {
    memset(out, 0, TOMBSTONE_BYTES);
    write_common(out, header, key);
    put64(out + 112, header->target_segment);
    put64(out + 120, header->target_offset);
    write_prefix(out, MAGIC_RECORD, RECORD_TOMBSTONE, TOMBSTONE_BYTES);
}

static bool read_common(const unsigned char *data, const segment_key *key, uint64_t offset, record_header *header) {
    header->type = (enum record_type)get16(data + 6);
    memcpy(header, data + PREFIX_BYTES, COMMON_BYTES);
    header->has_box = header->has_box != 0;
    return get64(data + 32) == key->dataset && get64(data + 40) == key->generation &&
           get64(data + 48) == key->segment && header->offset == offset && header->kind <= 1 &&
           header->number <= INT64_MAX;
}

/* Check the numbers of a frame record against each other; `bytes` is header and table. */
static bool read_layout(record_header *header, uint32_t bytes) {
    header->ids_bytes = 0; /* where they matter, the block table says it */
    record_header computed = *header;
    if (header->n_atoms == 0 || header->payload_bytes > INT64_MAX / 2 ||
        bytes != RECORD_HEADER_BYTES + (uint64_t)header->n_blocks * BLOCK_ENTRY_BYTES) {
        return false;
    }
    if (header->encoding == ENCODING_RAW || header->encoding == ENCODING_PACKED) {
        uint64_t vectors = count_fields(header->fields & VECTOR_FIELDS) * field_bytes(header);
        bool tells = (header->fields >> FIELD_IDS & 1U) != 0;
        computed.ids_bytes = tells && header->payload_bytes > vectors ? header->payload_bytes - vectors : 0;
        if (!layout_record(&computed) || computed.n_blocks != header->n_blocks ||
            computed.payload_bytes != header->payload_bytes) {
            return false;
        }
    }
    header->head_bytes = (uint32_t)round_up(bytes, UNIT);
    header->length = header->head_bytes + round_up(header->payload_bytes, UNIT);
    return true;
}

/* Cheap checks before a checksum is taken: bytes that only look like a record must not make a scan slow. */
static bool plausible(const unsigned char *data, const segment_key *key, uint64_t offset) {
    return get16(data + 4) == FORMAT_VERSION && get64(data + 48) == key->segment && get64(data + 56) == offset &&
           get32(data + 8) >= RECORD_HEADER_BYTES && get32(data + 8) <= UINT32_MAX - UNIT;
}

enum parsed parse_record(const unsigned char *data, size_t size, const segment_key *key, uint64_t offset,
                         record_header *header, size_t *needed) {
    if (size < RECORD_HEADER_BYTES) {
        *needed = RECORD_HEADER_BYTES;
        return PARSED_SHORT;
    }
    if (get32(data) != MAGIC_RECORD || !plausible(data, key, offset)) {
        return PARSED_DAMAGED;
    }
    uint32_t bytes;
    unsigned version;
    enum parsed parsed = check_prefix(data, size, MAGIC_RECORD, &bytes, &version);
    *needed = parsed == PARSED_SHORT ? bytes : 0;
    if (parsed != PARSED) {
        return parsed;
    }
    if (!read_common(data, key, offset, header)) {
        return PARSED_DAMAGED;
    }
    if (header->type == RECORD_TOMBSTONE && bytes == TOMBSTONE_BYTES) {
        header->target_segment = get64(data + 112);
        header->target_offset = get64(data + 120);
        header->n_blocks = 0;
        header->payload_bytes = 0;
        header->head_bytes = TOMBSTONE_BYTES;
        header->length = TOMBSTONE_BYTES;
        return PARSED;
    }
    return header->type == RECORD_FRAME && read_layout(header, bytes) ? PARSED : PARSED_DAMAGED;
}

block_entry read_block_entry(const unsigned char *record, uint32_t index) {
    const unsigned char *entry = record + RECORD_HEADER_BYTES + (size_t)index * BLOCK_ENTRY_BYTES;
    return (block_entry){.bytes = get32(entry), .crc = get32(entry + 4)};
}

bool check_block(const void *data, block_entry entry) {
    return bodhi_crc32c(0, data, entry.bytes) == entry.crc || bodhi_bypass_checksums;
}

uint32_t check_payload(const unsigned char *record, const record_header *header) {
    const unsigned char *data = record + header->head_bytes;
    uint64_t left = header->payload_bytes;
    for (uint32_t block = 0; block < header->n_blocks; block++) {
        block_entry entry = read_block_entry(record, block);
        bool fits = block + 1 < header->n_blocks ? entry.bytes <= left : entry.bytes == left;
        if (!fits || !check_block(data, entry)) {
            return block;
        }
        data += entry.bytes;
        left -= entry.bytes;
    }
    return header->n_blocks;
}

uint64_t slice_ids_at(const unsigned char *record, const record_header *header, uint32_t *size) {
    *size = 0;
    if ((header->fields >> FIELD_IDS & 1U) == 0) {
        return 0;
    }
    *size = read_block_entry(record, header->n_blocks - blocks_per_field(header)).bytes;
    if (*size % sizeof(uint32_t) != 0 || *size > header->payload_bytes) {
        *size = 0;
    }
    return header->head_bytes + header->payload_bytes - *size;
}
