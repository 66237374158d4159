/* Frames as the store has them; see compare.h. */
#include "write/writer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/io.h"
#include "base/status.h"
#include "codec/ids.h"
#include "read/unpack.h"

void stored_free(stored_frame *stored) {
    free(stored->record);    // NOLINT(clang-analyzer-unix.Malloc): it is another one for each copy
    free(stored->positions); // NOLINT(clang-analyzer-unix.Malloc)
    free(stored->frame.ids); // NOLINT(clang-analyzer-unix.Malloc)
    stored->frame.ids = NULL;
    stored->record = NULL;
    stored->positions = NULL;
}

/* Check the bytes of a record. As stored_read(). */
static int check_record(stored_frame *f, const segment_key *key, uint64_t offset, uint64_t length) {
    size_t needed;
    // NOLINTNEXTLINE(clang-analyzer-unix.Malloc): it was taken just now
    if (parse_record(f->record, (size_t)length, key, offset, &f->header, &needed) != PARSED ||
        !is_readable(&f->header) || f->header.length != length) {
        return bodhi_fail(BODHI_MISS, "its header is damaged, or of another record or version");
    }
    uint32_t right = check_payload(f->record, &f->header);
    return right == f->header.n_blocks
               ? BODHI_OK
               : bodhi_fail(BODHI_MISS, "block %u of %u is damaged (checksum)", right + 1, f->header.n_blocks);
}

/* Take the fields of a record that has been checked. As stored_read(). */
static int take_fields(stored_frame *f) {
    record_header *h = &f->header;
    const selection all = {.fields = (1U << FIELD_COUNT) - 1, .unverified = true};
    const piece whole = {.start = 0, .end = h->length};
    float *fields[FIELD_COUNT] = {NULL};
    f->positions = h->encoding == ENCODING_PACKED ? malloc((size_t)field_bytes(h)) : NULL;
    if (h->encoding == ENCODING_PACKED && f->positions == NULL) {
        return bodhi_fail_memory();
    }
    bool right = unpack_fields(f->record, h, &all, &whole, 1, f->positions, fields) == UNPACKED;
    f->frame = (bodhi_frame){.number = (int64_t)h->number,
                             .time = h->time,
                             .n_atoms = h->n_atoms,
                             .positions = fields[0],
                             .velocities = fields[1],
                             .forces = fields[2],
                             .box = h->has_box ? h->box : NULL,
                             .kind = h->kind};
    if (right && fields[FIELD_IDS] != NULL) {
        uint32_t size;
        uint64_t at = slice_ids_at(f->record, h, &size);
        f->frame.ids = malloc((size_t)h->n_atoms * sizeof *f->frame.ids);
        if (f->frame.ids == NULL) {
            return bodhi_fail_memory();
        }
        right = ids_read(f->record + at, size, f->frame.ids, h->n_atoms);
    }
    return right ? BODHI_OK
                 : bodhi_fail(BODHI_MISS, "it is damaged: its checksums are right, but it cannot be unpacked");
}

int stored_read(int fd, const segment_key *key, uint64_t offset, uint64_t length, stored_frame *stored) {
    *stored = (stored_frame){.record = malloc((size_t)length)};
    if (stored->record == NULL) {
        return bodhi_fail_memory();
    }
    // NOLINTNEXTLINE(clang-analyzer-unix.Malloc): it was taken just now
    ssize_t got = io_read(fd, stored->record, (size_t)length, offset, READ_ANY);
    int status = got == (ssize_t)length ? check_record(stored, key, offset, length)
                 : got < 0              ? bodhi_fail(BODHI_MISS, "the disk says: %m")
                                        : bodhi_fail(BODHI_MISS, "it is cut off, or the disk cannot read it");
    status = status == BODHI_OK ? take_fields(stored) : status;
    if (status != BODHI_OK) {
        stored_free(stored);
    }
    return status;
}

/* The next copy that may be acknowledged, its segment open; *fd is -1 and errno set if it cannot be opened now. */
static bool next_copy(bodhi_dataset *dataset, unsigned kind, uint64_t number, copy_cursor *at, place *copy,
                      segment_key *key, int *fd) {
    bool stored = false;
    pthread_mutex_lock(&dataset->mutex);
    while (!stored && dataset_next_copy(dataset, kind, number, at, copy)) {
        if (!dataset->segments[copy->segment]->doubtful) {
            *key = dataset->segments[copy->segment]->key;
            *fd = dataset_share(dataset, copy->segment);
            stored = *fd >= 0 || errno != ENOENT;
        }
    }
    int error = errno;
    pthread_mutex_unlock(&dataset->mutex);
    errno = error;
    return stored;
}

int stored_find(bodhi_dataset *dataset, unsigned kind, uint64_t number, stored_frame *stored) {
    copy_cursor at = {0};
    place copy;
    segment_key key;
    int fd;
    while (next_copy(dataset, kind, number, &at, &copy, &key, &fd)) {
        if (fd < 0) {
            return bodhi_fail_system(errno, "open", dataset->directory);
        }
        int status = stored_read(fd, &key, (uint64_t)copy.offset * UNIT, (uint64_t)copy.length * UNIT, stored);
        io_drop(fd);
        if (status == BODHI_OK && stored->header.number == number) {
            stored->ordinal = copy.segment;
            return BODHI_OK;
        }
        if (status == BODHI_OK) {
            stored_free(stored);
        } else if (status != BODHI_MISS) {
            return status;
        }
        pthread_mutex_lock(&dataset->mutex);
        dataset_pass_over(dataset, kind, &copy);
        pthread_mutex_unlock(&dataset->mutex);
        at = (copy_cursor){0}; /* the copies before it are still passed over */
    }
    return BODHI_MISS;
}

/* Bits are compared, so that a NaN is itself, and -0 is not 0. */
static bool is_same(const void *a, const void *b, size_t size) {
    return memcmp(a, b, size) == 0;
}

bool stored_differs(const stored_frame *stored, const bodhi_frame *frame, char *why, size_t size) {
    static const char *const names[FIELD_IDS] = {"positions", "velocities", "forces"};
    const bodhi_frame *there = &stored->frame;
    const float *ours[FIELD_IDS] = {frame->positions, frame->velocities, frame->forces};
    const float *theirs[FIELD_IDS] = {there->positions, there->velocities, there->forces};
    if (there->n_atoms != frame->n_atoms) {
        (void)snprintf(why, size, "%lld atoms, not %lld", (long long)there->n_atoms, (long long)frame->n_atoms);
        return true;
    }
    if ((there->ids == NULL) != (frame->ids == NULL) ||
        (frame->ids != NULL && !is_same(there->ids, frame->ids, (size_t)frame->n_atoms * sizeof *frame->ids))) {
        (void)snprintf(why, size, "other atoms");
        return true;
    }
    if (!is_same(&there->time, &frame->time, sizeof frame->time)) {
        (void)snprintf(why, size, "the time %.15g ps, not %.15g ps", there->time, frame->time);
        return true;
    }
    if ((there->box == NULL) != (frame->box == NULL) || (frame->box != NULL && !is_same(there->box, frame->box, 24))) {
        (void)snprintf(why, size, "another box");
        return true;
    }
    for (unsigned i = 0; i < FIELD_IDS; i++) {
        if ((ours[i] == NULL) != (theirs[i] == NULL)) {
            (void)snprintf(why, size, "%s %s", ours[i] == NULL ? "with" : "without", names[i]);
            return true;
        }
        if (ours[i] != NULL && !is_same(ours[i], theirs[i], (size_t)frame->n_atoms * 12)) {
            (void)snprintf(why, size, "other %s", names[i]);
            return true;
        }
    }
    return false;
}
