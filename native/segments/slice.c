/* The atoms of a slice; see slice.h. */
#include "segments/slice.h"

#include <stdlib.h>
#include <string.h>

#include "base/io.h"

void slice_base_free(slice_base *base) {
    id_set_free(&base->set);
}

uint64_t slice_told_at(const unsigned char *record, const record_header *header, uint32_t *size) {
    *size = 0;
    if ((header->fields >> FIELD_IDS & 1U) == 0) {
        return 0;
    }
    *size = read_block_entry(record, header->n_blocks - blocks_per_field(header)).bytes;
    if (*size % IDS_UNIT != 0 || *size > header->payload_bytes) {
        *size = 0;
    }
    return header->head_bytes + header->payload_bytes - *size;
}

/* Read the head of the record at `offset`, to be freed; NULL: there is none, or memory is out. */
static unsigned char *read_head(int fd, const segment_key *key, uint64_t offset, record_header *header) {
    size_t size = RECORD_HEADER_BYTES;
    unsigned char *head = NULL;
    for (int tries = 0; tries < 2; tries++) {
        free(head);
        head = malloc(size);
        size_t needed = 0;
        if (head == NULL || io_read(fd, head, size, offset, READ_ANY) != (ssize_t)size) {
            break;
        }
        enum parsed parsed = parse_record(head, size, key, offset, header, &needed);
        if (parsed == PARSED && header->type == RECORD_FRAME) {
            return head;
        }
        if (parsed != PARSED_SHORT || needed > SLICE_MOST_HEAD) {
            break;
        }
        size = needed;
    }
    free(head);
    return NULL;
}

/* Read the bytes that tell the atoms of a record, to be freed; NULL: they cannot be read, or are damaged. */
static unsigned char *read_told(int fd, const segment_key *key, uint64_t offset, record_header *header,
                                uint32_t *size) {
    unsigned char *head = read_head(fd, key, offset, header);
    if (head == NULL) {
        return NULL;
    }
    uint64_t at = slice_told_at(head, header, size);
    block_entry entry =
        *size == 0 ? (block_entry){0} : read_block_entry(head, header->n_blocks - blocks_per_field(header));
    unsigned char *told = *size == 0 ? NULL : malloc(*size);
    if (told != NULL &&
        (io_read(fd, told, *size, offset + at, READ_ANY) != (ssize_t)*size || !check_block(told, entry))) {
        free(told);
        told = NULL;
    }
    free(head);
    return told;
}

/* Have the set of the record at `offset`, which it tells whole. */
static bool have_base(int fd, const segment_key *key, uint64_t offset, slice_base *base) {
    if (base->set.n > 0 && base->offset == offset && memcmp(&base->of, key, sizeof *key) == 0) {
        return true;
    }
    record_header header;
    uint32_t size;
    unsigned char *told = fd < 0 ? NULL : read_told(fd, key, offset, &header, &size);
    uint32_t *ids = told == NULL ? NULL : malloc((size_t)header.n_atoms * sizeof *ids);
    bool right =
        ids != NULL && ids_read(told, size, NULL, ids, header.n_atoms) && id_set_copy(&base->set, ids, header.n_atoms);
    if (right) {
        base->of = *key;
        base->offset = offset;
    }
    free(told);
    free(ids);
    return right;
}

bool slice_ids(int fd, const segment_key *key, const record_header *header, const unsigned char *told, size_t size,
               slice_base *base, uint32_t *ids) {
    uint64_t offset;
    if (!ids_are_delta(told, size, &offset)) {
        return ids_read(told, size, NULL, ids, header->n_atoms);
    }
    return offset % UNIT == 0 && offset < header->offset && have_base(fd, key, offset, base) &&
           ids_read(told, size, &base->set, ids, header->n_atoms);
}
