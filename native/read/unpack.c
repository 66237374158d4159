/* From a record in memory to a frame; see unpack.h. */
#include "read/unpack.h"

#include "codec/packed.h"

bool is_readable(const record_header *header) {
    return header->type == RECORD_FRAME &&
           (header->encoding == ENCODING_RAW ||
            (header->encoding == ENCODING_PACKED && header->block_atoms <= PACKED_MAX_ATOMS &&
             header->payload_bytes / PACKED_LEAST_BYTES >= blocks_per_field(header)));
}

/* The field that block `index` of all belongs to, among those that the record has. */
static unsigned field_of(const record_header *header, uint32_t index) {
    uint32_t rank = index / blocks_per_field(header);
    unsigned field = 0;
    while ((header->fields >> field & 1U) == 0 || rank-- > 0) {
        field++;
    }
    return field;
}

/* Whether atoms first to last - 1 meet a range; ranges before them are passed over for good. */
static bool meets_range(block_walk *walk, uint64_t first, uint64_t last) {
    const selection *subset = walk->subset;
    while (walk->range < subset->n_ranges && (uint64_t)subset->ranges[walk->range].last <= first) {
        walk->range++;
    }
    return subset->ranges == NULL ||
           (walk->range < subset->n_ranges && (uint64_t)subset->ranges[walk->range].first < last);
}

bool next_wanted_block(block_walk *walk, wanted_block *block) {
    const record_header *header = walk->header;
    while (walk->index < header->n_blocks) {
        uint32_t within = walk->index % blocks_per_field(header);
        walk->range = within == 0 ? 0 : walk->range;
        *block = (wanted_block){.field = field_of(header, walk->index),
                                .first = within * header->block_atoms,
                                .atoms = atoms_in_block(header, within),
                                .offset = header->head_bytes + walk->payload,
                                .entry = read_block_entry(walk->record, walk->index)};
        walk->index++;
        walk->payload += block->entry.bytes;
        if ((walk->subset->fields >> block->field & 1U) != 0 &&
            meets_range(walk, block->first, (uint64_t)block->first + block->atoms)) {
            return true;
        }
    }
    return false;
}

/* Whether bytes offset to offset + bytes - 1 lie in one of the pieces; those before them are passed over. */
static bool was_read(const piece **at, const piece *end, uint64_t offset, uint64_t bytes) {
    while (*at < end && (*at)->end < offset + bytes) {
        (*at)++;
    }
    return *at < end && (*at)->start <= offset;
}

/* Point to the fields that are asked for: raw ones lie at the end of the record. False if they cannot lie there. */
static bool find_fields(unsigned char *record, const record_header *header, const selection *subset, float *positions,
                        float *fields[FIELD_COUNT]) {
    bool packed = header->encoding == ENCODING_PACKED;
    uint64_t end = header->head_bytes + header->payload_bytes;
    for (unsigned field = FIELD_COUNT; field-- > 0;) {
        fields[field] = NULL;
        if ((header->fields >> field & 1U) == 0) {
            continue;
        }
        if (field == FIELD_IDS) {
            uint32_t size;
            uint64_t at = slice_ids_at(record, header, &size);
            if (size == 0) {
                return false;
            }
            end = at;
            fields[field] = (subset->fields >> field & 1U) != 0 ? (float *)(void *)(record + at) : NULL;
            continue;
        }
        bool is_packed = packed && field == 0;
        if (!is_packed && end - header->head_bytes < field_bytes(header)) {
            return false;
        }
        end -= is_packed ? 0 : field_bytes(header);
        if ((subset->fields >> field & 1U) != 0) {
            fields[field] = is_packed ? positions : (float *)(void *)(record + end);
        }
    }
    return end % sizeof(float) == 0;
}

/* Take one block whose bytes are there and right. */
static bool unpack_block(const unsigned char *record, const record_header *header, const wanted_block *block,
                         float *field) {
    const unsigned char *data = record + block->offset;
    if (block->field == FIELD_IDS) {
        return block->first == 0 ? data == (const unsigned char *)field : block->entry.bytes == 0;
    }
    float *out = field + (size_t)block->first * 3;
    if (header->encoding == ENCODING_PACKED && block->field == 0) {
        return packed_decode(data, block->entry.bytes, block->atoms, out);
    }
    return block->entry.bytes == (uint64_t)block->atoms * 12 && data == (const unsigned char *)out;
}

/* The next block that is asked for: UNPACKED, or why it is not there. *more false: there is none. */
static enum unpacked next_read_block(block_walk *walk, wanted_block *block, const piece **at, const piece *end,
                                     bool *more) {
    const record_header *header = walk->header;
    *more = next_wanted_block(walk, block);
    if (!*more) {
        return UNPACKED;
    }
    if (block->offset + block->entry.bytes > header->head_bytes + header->payload_bytes) {
        return UNPACK_DAMAGED;
    }
    if (!was_read(at, end, block->offset, block->entry.bytes)) {
        return UNPACK_UNREAD;
    }
    bool right = walk->subset->unverified || check_block(walk->record + block->offset, block->entry);
    return right ? UNPACKED : UNPACK_DAMAGED;
}

enum unpacked unpack_fields(unsigned char *record, const record_header *header, const selection *subset,
                            const piece *pieces, size_t n_pieces, float *positions, float *fields[FIELD_COUNT]) {
    block_walk walk = {.record = record, .header = header, .subset = subset};
    const piece *at = pieces;
    wanted_block block;
    bool more = true;
    if (fields != NULL && !find_fields(record, header, subset, positions, fields)) {
        return UNPACK_DAMAGED;
    }
    for (;;) {
        enum unpacked status = next_read_block(&walk, &block, &at, pieces + n_pieces, &more);
        if (status != UNPACKED || !more) {
            return status;
        }
        if (fields != NULL && !unpack_block(record, header, &block, fields[block.field])) {
            return UNPACK_DAMAGED;
        }
    }
}
