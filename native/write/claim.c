/* Claiming segments; see writer.h. */
#include "write/writer.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "base/io.h"
#include "base/status.h"

static bool worth_trying(const segment *s, unsigned kind, uint64_t length, uint64_t segment_bytes) {
    return s->kind == kind && !s->gone && !s->refused && !s->frozen && !s->doubtful && !s->damaged_header &&
           s->checked && s->covered + length <= segment_bytes;
}

/* Whether a tombstone speaks of a record that a power cut has lost: what came to lie there would be dropped with it. */
static bool has_lost_dropped(const bodhi_dataset *dataset, const segment *s) {
    for (size_t i = 0; i < dataset->n_tombstones[s->kind]; i++) {
        if (dataset->tombstones[s->kind][i].segment == s->key.segment) {
            return true;
        }
    }
    return false;
}

/* Bring segment and index to one end, which appending needs. The caller holds the writer's lock on `fd`. */
static bool make_whole(bodhi_dataset *dataset, uint32_t ordinal, int fd) {
    segment *s = dataset->segments[ordinal];
    struct stat status;
    if (dataset_load(dataset, ordinal, true) != 0 || bodhi_io.fstat(fd, &status) != 0) {
        return false;
    }
    sealed_unlink_stale(dataset->fd, s, (uint64_t)status.st_size);
    if (s->incomplete || s->index_covered != (uint64_t)status.st_size) {
        return segment_recover(dataset->fd, s, fd) == 0 && dataset_load(dataset, ordinal, true) == 0 &&
               bodhi_io.fstat(fd, &status) == 0 && !s->incomplete && s->index_covered == (uint64_t)status.st_size;
    }
    return true;
}

/* Claim this very segment; false if it cannot be had, for whatever reason. */
static bool claim_existing(bodhi_dataset *dataset, uint32_t ordinal, uint64_t length, uint64_t segment_bytes,
                           claim *claimed) {
    segment *s = dataset->segments[ordinal];
    struct stat status;
    int fd = io_open(dataset->fd, s->name, O_RDWR);
    int index_fd = -1;
    bool ours = fd >= 0 && io_lock(fd, LOCK_WRITER, true) == LOCK_GOT && bodhi_io.fstat(fd, &status) == 0 &&
                status.st_nlink > 0 && make_whole(dataset, ordinal, fd) &&
                worth_trying(s, s->kind, length, segment_bytes);
    if (ours) {
        index_fd = io_open(dataset->fd, s->index_name, O_RDWR);
        ours = index_fd >= 0 && io_truncate(index_fd, s->index_at); /* an entry that was cut short */
    }
    if (!ours) {
        io_drop(index_fd);
        io_drop(fd);
        return false;
    }
    *claimed = (claim){.ordinal = ordinal,
                       .key = s->key,
                       .fd = fd,
                       .index_fd = index_fd,
                       .end = s->index_covered,
                       .index_end = s->index_at};
    memcpy(claimed->name, s->name, sizeof claimed->name);
    return true;
}

static bool write_header(int fd, uint32_t magic, const segment *s) {
    unsigned char header[SEGMENT_HEADER_BYTES];
    write_file_header(header, magic, &s->key, s->kind);
    return io_write(fd, header, sizeof header, 0);
}

/* Make the two files of a new segment, locked; errno on failure, and nothing is left behind. */
static bool make_files(bodhi_dataset *dataset, const segment *s, claim *claimed) {
    claimed->index_fd = -1;
    claimed->fd = io_open(dataset->fd, s->name, O_RDWR | O_CREAT | O_EXCL);
    if (claimed->fd < 0) {
        return false;
    }
    enum lock_result lock = io_lock(claimed->fd, LOCK_WRITER, true);
    struct stat status;
    bool made = lock == LOCK_GOT && bodhi_io.fstat(claimed->fd, &status) == 0;
    if (made && status.st_nlink == 0) { /* evicted before it was locked */
        errno = ENOENT;
        made = false;
    }
    made = made && write_header(claimed->fd, MAGIC_SEGMENT, s);
    if (made) {
        claimed->index_fd = io_open(dataset->fd, s->index_name, O_RDWR | O_CREAT | O_EXCL);
        made = claimed->index_fd >= 0 && write_header(claimed->index_fd, MAGIC_INDEX, s);
    }
    if (made) {
        return true;
    }
    int error = errno;
    if (lock == LOCK_GOT) {
        (void)bodhi_io.unlinkat(dataset->fd, s->name, 0);
        (void)bodhi_io.unlinkat(dataset->fd, s->index_name, 0);
    }
    io_drop(claimed->index_fd);
    io_drop(claimed->fd);
    errno = error;
    return false;
}

/* Make a new segment. Where it, or the whole directory, is evicted before it is locked, it is made anew. */
static int claim_new(bodhi_dataset *dataset, unsigned kind, claim *claimed) {
    enum { TRIES = 4 };
    segment made = {.key = dataset->key,
                    .covered = SEGMENT_HEADER_BYTES,
                    .index_covered = SEGMENT_HEADER_BYTES,
                    .index_at = SEGMENT_HEADER_BYTES,
                    .checked = true,
                    .fd = -1,
                    .direct_fd = -1};
    for (int tried = 1;; tried++) {
        if (!segment_new_name(&made, kind)) {
            return bodhi_fail_system(errno, "getrandom", dataset->directory);
        }
        if (make_files(dataset, &made, claimed)) {
            break;
        }
        int result = errno != ENOENT || tried == TRIES
                         ? bodhi_fail_system(errno, "making a segment", dataset->directory)
                         : dataset_restore(dataset);
        if (result != BODHI_OK) {
            return result;
        }
    }
    struct stat status;
    made.index_inode = bodhi_io.fstat(claimed->index_fd, &status) == 0 ? status.st_ino : 0;
    if (dataset_add(dataset, &made, &claimed->ordinal) == NULL) {
        io_drop(claimed->index_fd);
        io_drop(claimed->fd);
        return bodhi_fail_memory();
    }
    claimed->key = made.key;
    memcpy(claimed->name, made.name, sizeof claimed->name);
    claimed->end = SEGMENT_HEADER_BYTES;
    claimed->index_end = SEGMENT_HEADER_BYTES;
    claimed->created = true;
    return BODHI_OK;
}

int claim_segment(bodhi_dataset *dataset, unsigned kind, uint64_t length, uint64_t segment_bytes, claim *claimed) {
    for (size_t i = dataset->n_segments; i-- > 0;) {
        if (worth_trying(dataset->segments[i], kind, length, segment_bytes) &&
            !has_lost_dropped(dataset, dataset->segments[i]) &&
            claim_existing(dataset, (uint32_t)i, length, segment_bytes, claimed)) {
            return BODHI_OK;
        }
    }
    return claim_new(dataset, kind, claimed);
}
