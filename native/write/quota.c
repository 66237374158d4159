/* Room for a writer; see writer.h. The file holds one number (u64) a writer at multiples of 8; the writer has the byte
 * there locked, so that a number whose byte nobody has locked is of one that died. Byte 0 is locked by whoever is being
 * granted room. */
#include "write/writer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/io.h"
#include "base/status.h"
#include "base/threads.h"
#include "store/dataset.h"

enum {
    SLOT_BYTES = 8,
    MOST_SLOTS = 1 << 16,
    STEPS_IN_QUOTA = 256, /* what many writers have been granted and not used should be a small part of it */
    LARGEST_STEP = 64 << 20,
    ENDS = 3 * 4096, /* a segment, its index and a directory end in blocks of the disk that are not full */
    PATIENCE_MS = 10000,
    REFUSED_MS = 100 /* looking at all files for each of thousands of frames would take too long */
};

/* Tell the others. If that fails, they know of a step less or more until the next time. */
static void publish(const room *r) {
    (void)io_write(r->fd, &r->outstanding, SLOT_BYTES, r->slot);
}

static int open_file(room *r, const bodhi_store *store) {
    int fd = io_open(store->fd, "room", O_RDWR | O_CREAT);
    if (fd < 0) {
        return bodhi_fail_system(errno, "open of room", store->path);
    }
    for (uint64_t slot = SLOT_BYTES; slot <= (uint64_t)MOST_SLOTS * SLOT_BYTES; slot += SLOT_BYTES) {
        enum lock_result got = io_lock(fd, slot, true);
        if (got == LOCK_GOT) {
            r->fd = fd;
            r->slot = slot;
            return BODHI_OK;
        }
        if (got == LOCK_FAILED) {
            break;
        }
    }
    io_drop(fd);
    return bodhi_fail_system(errno, "lock of room", store->path);
}

/* Be the only one who is granted room. */
static int lock_file(const room *r, const bodhi_store *store) {
    static const struct timespec pause = {.tv_nsec = 500000};
    int64_t deadline = now_ms() + PATIENCE_MS;
    enum lock_result got;
    while ((got = io_lock(r->fd, 0, true)) == LOCK_HELD && now_ms() < deadline) {
        (void)nanosleep(&pause, NULL);
    }
    if (got == LOCK_HELD) {
        return bodhi_fail(BODHI_ERROR_FULL, "%s: another process has been asking for room for %d s", store->path,
                          PATIENCE_MS / 1000);
    }
    return got == LOCK_GOT ? BODHI_OK : bodhi_fail_system(errno, "lock of room", store->path);
}

/* Bytes granted to living writers and not in their files yet. */
static int64_t promised(const room *r) {
    uint64_t sum = r->outstanding;
    uint64_t slots[512];
    ssize_t got;
    for (uint64_t at = 0; (got = io_read(r->fd, slots, sizeof slots, at, READ_ANY)) > 0; at += (uint64_t)got) {
        for (size_t i = at == 0; i < (size_t)got / SLOT_BYTES; i++) {
            uint64_t slot = at + i * SLOT_BYTES;
            sum += slots[i] != 0 && slot != r->slot && io_locked(r->fd, slot) ? slots[i] : 0;
        }
    }
    return (int64_t)sum;
}

/* Whether a segment goes to make room for a dataset. */
static bool may_go(const bodhi_dataset *dataset, const bodhi_stored_segment *s) {
    return !s->pushed && strcmp(s->directory, dataset->directory) != 0;
}

/* Evict until `preferred` bytes are free, else `needed`; none if not even those can be. Returns the bytes freed. */
static int64_t evict_some(const bodhi_dataset *dataset, const bodhi_stored_segment *segments, size_t n,
                          int64_t preferred, int64_t needed) {
    int64_t total = 0;
    int64_t freed = 0;
    for (size_t i = 0; i < n; i++) {
        total += may_go(dataset, &segments[i]) ? segments[i].bytes : 0;
    }
    int64_t target = total >= preferred ? preferred : total >= needed ? needed : 0;
    for (size_t i = 0; i < n && freed < target; i++) {
        if (may_go(dataset, &segments[i]) && bodhi_store_evict(dataset->store, &segments[i]) == BODHI_OK) {
            freed += segments[i].bytes;
        }
    }
    return freed;
}

static const char *show(char out[16], int64_t bytes) {
    static const char prefixes[] = "kMGTP";
    double size = (double)bytes;
    int power = -1;
    for (; size >= 999.5 && power < 4; power++) {
        size /= 1000;
    }
    (void)snprintf(out, 16, power >= 0 && size < 99.95 ? "%.1f %.1sB" : "%.0f %.1sB", size,
                   power < 0 ? "" : prefixes + power);
    return out;
}

static int fail_full(const bodhi_store *store, const bodhi_usage *usage, int64_t held, int64_t bytes) {
    char size[5][16];
    return bodhi_fail(BODHI_ERROR_FULL,
                      "%s has no room for %s more: it holds %s of a quota of %s, and the disk has %s free, of which "
                      "%s are left to others",
                      store->path, show(size[0], bytes), show(size[1], held), show(size[2], (int64_t)store->quota),
                      show(size[3], usage->free), show(size[4], usage->reserve));
}

/* Grant a step, else as much of it as there is room for, `needed` at least. */
static int grant(room *r, const bodhi_dataset *dataset, int64_t needed) {
    const bodhi_store *store = dataset->store;
    bodhi_usage usage;
    bodhi_stored_segment *segments;
    size_t n;
    /* First, as the others go on writing: what comes into their files meanwhile counts twice, and never not at all. */
    int64_t others = promised(r);
    int status = survey_store(store->fd, &usage, &segments, &n);
    if (status != BODHI_OK) {
        return status;
    }
    int64_t step = (int64_t)(store->quota / STEPS_IN_QUOTA);
    step = step < LARGEST_STEP ? step : LARGEST_STEP;
    step = step > needed ? step : needed;
    int64_t in_quota = (int64_t)store->quota - usage.used - others;
    int64_t on_disk = usage.free - usage.reserve - others - ENDS;
    int64_t there = in_quota < on_disk ? in_quota : on_disk;
    if (there < step) {
        there += evict_some(dataset, segments, n, step - there, needed - there);
    }
    free(segments);
    if (there < needed) {
        r->refused = (uint64_t)needed;
        r->refused_until = now_ms() + REFUSED_MS;
        return fail_full(store, &usage, usage.used + others, needed);
    }
    r->left += (uint64_t)(there < step ? there : step);
    r->outstanding += (uint64_t)(there < step ? there : step);
    return BODHI_OK;
}

int room_ask(room *r, const bodhi_dataset *dataset, uint64_t bytes) {
    if (dataset->store->quota == 0 || r->left >= bytes) {
        return BODHI_OK;
    }
    if (bytes - r->left >= r->refused && now_ms() < r->refused_until) {
        return bodhi_fail(BODHI_ERROR_FULL, "%s has no room, as was told just now", dataset->store->path);
    }
    int status = r->fd >= 0 ? BODHI_OK : open_file(r, dataset->store);
    status = status == BODHI_OK ? lock_file(r, dataset->store) : status;
    if (status == BODHI_OK) {
        publish(r); /* the file's own bytes count, too */
        status = grant(r, dataset, (int64_t)(bytes - r->left));
        publish(r);
        io_unlock(r->fd, 0);
    }
    dataset_use(dataset);
    return status;
}

void room_take(room *r, uint64_t bytes) {
    r->left -= bytes < r->left ? bytes : r->left;
}

void room_settle(room *r, uint64_t bytes) {
    r->outstanding -= bytes < r->outstanding ? bytes : r->outstanding;
    if (r->fd >= 0) {
        publish(r);
    }
}

void room_close(room *r) {
    io_drop(r->fd); /* and with it the lock on our slot */
}
