/* Frames as the store has them; see stored.h. */
#include "write/stored.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/io.h"
#include "base/status.h"
#include "codec/packed.h"

/* --- Unpacking --------------------------------------------------------------------------------------------------- */

/* Decode packed positions; the record's blocks have been checked. Returns the bytes that they take; 0: damaged. */
static uint64_t decode_positions(stored_frame *f) {
    uint64_t bytes = 0;
    if (f->header.block_atoms > PACKED_MAX_ATOMS) {
        return 0;
    }
    for (uint32_t block = 0; block < blocks_per_field(&f->header); block++) {
        block_entry entry = read_block_entry(f->record, block);
        if (!packed_decode(f->record + f->header.head_bytes + bytes, entry.bytes, atoms_in_block(&f->header, block),
                           f->positions + (size_t)block * f->header.block_atoms * 3)) {
            return 0;
        }
        bytes += entry.bytes;
    }
    return bytes;
}

/* Point to the fields of a record that has been checked. False if they do not fit it. */
static bool find_fields(stored_frame *f) {
    record_header *h = &f->header;
    unsigned char *at = f->record + h->head_bytes;
    float **arrays[FIELD_COUNT] = {&f->frame.positions, &f->frame.velocities, &f->frame.forces};
    uint64_t left = h->payload_bytes;
    f->frame = (bodhi_frame){.number = (int64_t)h->number,
                             .time = h->time,
                             .n_atoms = h->n_atoms,
                             .box = h->has_box ? h->box : NULL,
                             .kind = h->kind};
    for (unsigned i = 0; i < FIELD_COUNT; i++) {
        if (((unsigned)h->fields >> i & 1U) == 0) {
            continue;
        }
        bool packed = i == 0 && h->encoding == ENCODING_PACKED;
        uint64_t bytes = packed ? decode_positions(f) : field_bytes(h);
        if (bytes == 0 || bytes > left || (uintptr_t)at % sizeof(float) != 0) {
            return false;
        }
        *arrays[i] = packed ? f->positions : (float *)(void *)at;
        at += bytes;
        left -= bytes;
    }
    return left == 0;
}

/* --- Reading ----------------------------------------------------------------------------------------------------- */

void stored_free(stored_frame *found) {
    free(found->record);
    free(found->positions);
    found->record = NULL;
    found->positions = NULL;
}

/* Whether the bytes are a record that this version reads, whole and undamaged. */
static bool is_right(stored_frame *f, const segment_key *key, uint64_t offset, uint64_t length) {
    size_t needed;
    return parse_record(f->record, (size_t)length, key, offset, &f->header, &needed) == PARSED &&
           f->header.type == RECORD_FRAME && f->header.encoding <= ENCODING_PACKED && f->header.length == length &&
           (f->header.encoding == ENCODING_RAW ||
            f->header.payload_bytes / PACKED_LEAST_BYTES >= blocks_per_field(&f->header)) &&
           check_payload(f->record, &f->header);
}

int stored_read(int fd, const segment_key *key, uint64_t offset, uint64_t length, stored_frame *found) {
    *found = (stored_frame){.record = malloc((size_t)length)};
    if (found->record == NULL) {
        return bodhi_fail_memory();
    }
    ssize_t got = io_read(fd, found->record, (size_t)length, offset, READ_ANY);
    int status = got == (ssize_t)length && is_right(found, key, offset, length) ? BODHI_OK : BODHI_MISS;
    if (status == BODHI_OK && found->header.encoding == ENCODING_PACKED) {
        found->positions = malloc((size_t)field_bytes(&found->header));
        status = found->positions == NULL ? bodhi_fail_memory() : BODHI_OK;
    }
    if (status == BODHI_OK && !find_fields(found)) {
        status = BODHI_MISS;
    }
    if (status != BODHI_OK) {
        stored_free(found);
    }
    return status;
}

/* --- Finding ----------------------------------------------------------------------------------------------------- */

/* The next copy that may be acknowledged, its segment open; false: there is none. A segment that is gone is forgotten,
 * and with it its copies. *fd is -1 and errno set if the segment cannot be opened now. */
static bool next_copy(bodhi_dataset *dataset, unsigned kind, uint64_t number, size_t *state, place *copy, int *fd) {
    const place *next;
    bool found = false;
    pthread_mutex_lock(&dataset->mutex);
    while (!found && (next = table_find(&dataset->tables[kind], number, state)) != NULL) {
        *copy = *next;
        if (!dataset->segments[copy->segment]->doubtful) {
            *fd = dataset_share(dataset, copy->segment);
            found = *fd >= 0 || errno != ENOENT;
        }
    }
    int error = errno;
    pthread_mutex_unlock(&dataset->mutex);
    errno = error;
    return found;
}

/* Nobody in this process takes the copy for one that is there from now on. */
static void pass_over(bodhi_dataset *dataset, unsigned kind, const place *bad) {
    size_t state = 0;
    place *copy;
    pthread_mutex_lock(&dataset->mutex);
    while ((copy = table_find(&dataset->tables[kind], bad->number, &state)) != NULL) {
        if (copy->segment == bad->segment && copy->offset == bad->offset) {
            copy->dead = 1;
            dataset->segments[copy->segment]->live--;
        }
    }
    pthread_mutex_unlock(&dataset->mutex);
}

int stored_find(bodhi_dataset *dataset, unsigned kind, uint64_t number, stored_frame *found) {
    size_t state = 0;
    place copy;
    int fd;
    while (next_copy(dataset, kind, number, &state, &copy, &fd)) {
        if (fd < 0) {
            return bodhi_fail_system(errno, "open", dataset->directory);
        }
        pthread_mutex_lock(&dataset->mutex);
        segment_key key = dataset->segments[copy.segment]->key;
        pthread_mutex_unlock(&dataset->mutex);
        int status = stored_read(fd, &key, (uint64_t)copy.offset * UNIT, (uint64_t)copy.length * UNIT, found);
        (void)io_close(fd);
        if (status == BODHI_OK && found->header.number == number) {
            found->ordinal = copy.segment;
            return BODHI_OK;
        }
        if (status == BODHI_OK) {
            stored_free(found);
        } else if (status != BODHI_MISS) {
            return status;
        }
        pass_over(dataset, kind, &copy);
        state = 0; /* the copies before it are still passed over */
    }
    return BODHI_MISS;
}

/* --- Comparing --------------------------------------------------------------------------------------------------- */

/* The first atom whose vectors differ; -1: none. Bits are compared, so that a NaN is itself. */
static int64_t first_difference(const float *a, const float *b, int64_t n_atoms) {
    if (memcmp(a, b, (size_t)n_atoms * 12) == 0) {
        return -1;
    }
    int64_t atom = 0;
    while (memcmp(a + atom * 3, b + atom * 3, 12) == 0) {
        atom++;
    }
    return atom;
}

bool stored_differs(const stored_frame *found, const bodhi_frame *frame, char *why, size_t size) {
    static const char *const names[FIELD_COUNT] = {"positions", "velocities", "forces"};
    const bodhi_frame *there = &found->frame;
    const float *ours[FIELD_COUNT] = {frame->positions, frame->velocities, frame->forces};
    const float *theirs[FIELD_COUNT] = {there->positions, there->velocities, there->forces};
    if (there->n_atoms != frame->n_atoms) {
        (void)snprintf(why, size, "%lld atoms, not %lld", (long long)there->n_atoms, (long long)frame->n_atoms);
        return true;
    }
    if (memcmp(&there->time, &frame->time, sizeof frame->time) != 0) {
        (void)snprintf(why, size, "the time %.15g ps, not %.15g ps", there->time, frame->time);
        return true;
    }
    if ((there->box == NULL) != (frame->box == NULL) ||
        (frame->box != NULL && memcmp(there->box, frame->box, 24) != 0)) {
        (void)snprintf(why, size, "another box");
        return true;
    }
    for (unsigned i = 0; i < FIELD_COUNT; i++) {
        if ((ours[i] == NULL) != (theirs[i] == NULL)) {
            (void)snprintf(why, size, "%s %s", ours[i] == NULL ? "with" : "without", names[i]);
            return true;
        }
        int64_t atom = ours[i] == NULL ? -1 : first_difference(ours[i], theirs[i], frame->n_atoms);
        if (atom >= 0) {
            (void)snprintf(why, size, "other %s (first of atom %lld)", names[i], (long long)atom);
            return true;
        }
    }
    return false;
}
