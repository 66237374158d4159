/* Finding the valid records of a segment without its index. */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/io.h"
#include "base/memory.h"
#include "segments/segment.h"

/* The part of the segment that is in memory. */
typedef struct {
    int fd;
    unsigned char *buffer;
    size_t capacity;
    size_t filled;
    uint64_t start;
    uint64_t limit; /* nothing is read from here on */
} window;

enum {
    WINDOW_BYTES = 1 << 20,
    SECTOR = 4096,
    MAX_BAD_SECTORS = 16 /* a dying disk takes seconds for each */
};

/* Have `size` bytes at `at` in memory; NULL and errno (0: the segment ends before). */
static const unsigned char *view(window *w, uint64_t at, uint64_t size) {
    if (at > w->limit || size > w->limit - at) {
        errno = 0;
        return NULL;
    }
    if (at >= w->start && at + size <= w->start + w->filled) {
        return w->buffer + (at - w->start);
    }
    if (!ARRAY_FIT(w->buffer, w->capacity, (size_t)size)) {
        errno = ENOMEM;
        return NULL;
    }
    uint64_t there = w->limit - at;
    ssize_t got = io_read(w->fd, w->buffer, there < w->capacity ? (size_t)there : w->capacity, at, READ_ANY);
    w->start = at;
    w->filled = got < 0 ? 0 : (size_t)got;
    if (got < 0) {
        return NULL;
    }
    errno = 0;
    return w->filled >= size ? w->buffer : NULL;
}

/* Parse the record head at `at`, with as many bytes as it takes. Sets errno as look() does when it returns SHORT. */
static enum parsed look_at_record(window *w, const segment_key *key, uint64_t at, record_header *header) {
    size_t needed = RECORD_HEADER_BYTES;
    for (;;) {
        const unsigned char *data = view(w, at, needed);
        if (data == NULL) {
            return PARSED_SHORT;
        }
        size_t size = needed;
        enum parsed parsed = parse_record(data, size, key, at, header, &needed);
        if (parsed != PARSED_SHORT) {
            return parsed;
        }
    }
}

/* Whether the payload of the record at `at` is there and right. Sets errno as look() does. */
static bool payload_is_right(window *w, uint64_t at, const record_header *header) {
    const unsigned char *record = view(w, at, header->length);
    return record != NULL && check_payload(record, header) == header->n_blocks;
}

/* Where the data goes on if a hole of the file begins at `at`, rounded to a record's beginning; else `at`. */
static uint64_t behind_hole(int fd, uint64_t at, uint64_t to) {
    off_t data = lseek(fd, (off_t)at, SEEK_DATA); /* nothing reads at the descriptor's own place */
    if (data < 0) {
        return errno == ENXIO ? to : at;
    }
    uint64_t next = (uint64_t)data / UNIT * UNIT;
    return next > at ? next : at;
}

/* A bad sector is passed over; any other error ends the scan. */
static bool ends_scan(int error) {
    return error != 0 && error != EIO;
}

scan_result scan_segment(int fd, const segment_key *key, uint64_t from, uint64_t to, scan_visitor *visit,
                         void *context) {
    scan_result result = {.end = from, .error = 0};
    window w = {.fd = fd, .buffer = malloc(WINDOW_BYTES), .capacity = WINDOW_BYTES, .limit = to};
    if (w.buffer == NULL) {
        result.error = ENOMEM;
        return result;
    }
    uint64_t at = from;
    uint64_t looked = 0; /* for holes, up to here */
    int bad_sectors = 0;
    while (at < to && to - at >= TOMBSTONE_BYTES) {
        record_header header;
        errno = 0;
        enum parsed parsed = look_at_record(&w, key, at, &header);
        bool right = parsed == PARSED && payload_is_right(&w, at, &header);
        result.error = errno != 0 ? errno : result.error;
        if (ends_scan(errno) || (errno == EIO && ++bad_sectors == MAX_BAD_SECTORS)) {
            break;
        }
        if (right) {
            if (!visit(context, &header)) {
                result.error = ENOMEM;
                break;
            }
            result.skipped += at - result.end;
            at += header.length;
            result.end = at;
        } else {
            at += errno != 0 ? SECTOR - at % SECTOR : UNIT;
            if (at >= looked && at < to) {
                at = behind_hole(fd, at, to);
                looked = at + WINDOW_BYTES;
            }
        }
    }
    free(w.buffer);
    return result;
}
