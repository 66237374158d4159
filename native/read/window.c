/* Windows: which records and which parts of them are read by which requests, and the requests.
 *
 * The index says where records lie, not where in them a block does. Where only some blocks are asked for, the head of a
 * window's first record is read by itself, and the blocks are looked for at the same places in the others, with some
 * slack around packed ones, whose lengths vary. A frame for which that was wrong is read again by itself. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/io.h"
#include "base/memory.h"
#include "read/reader.h"

enum {
    MAX_ITEMS = 8192,     /* frames in a window */
    MAX_SPAN = 16,        /* windows may lie over so many times the bytes that they read */
    GAP_BYTES = 64 << 10, /* gaps up to this size are read over */
    CACHED_GAP = 8 << 10, /* the same where the page cache has the bytes */
    REMOTE_GAP = 4 << 10, /* the same where they come from another machine, all requests of a window at once */
    SLACK_SHARE = 32,     /* packed blocks are looked for within a 32nd of what precedes them */
    PAGE = 4096,
    HUGE_PAGE = 2 << 20
};

static uint64_t gap_of(const bodhi_reader *r, enum fill_mode mode) {
    return r->locator->fetch != NULL ? REMOTE_GAP : mode == FILL_CACHED ? CACHED_GAP : GAP_BYTES;
}

/* --- The parts of records ---------------------------------------------------------------------------------------- */

static uint64_t length_of(const place *p) {
    return (uint64_t)p->length * UNIT;
}

static bool is_like(const place *p, const place *other) {
    bool raw = p->fields >> 4 == ENCODING_RAW;
    return p->fields == other->fields && p->head == other->head && (!raw || p->length == other->length);
}

const piece *window_pieces(const bodhi_reader *r, const window *w, const place *p, piece *whole, size_t *count) {
    if (w->layout.known && !needs_all(&r->subset, p->fields) && is_like(p, &w->layout.like)) {
        *count = w->layout.count;
        return w->layout.pieces;
    }
    *whole = (piece){.start = 0, .end = length_of(p)};
    *count = 1;
    return whole;
}

/* Add a piece, joined to the last one if they nearly touch. False: memory is out. */
static bool add_piece(layout *l, uint64_t start, uint64_t end, uint64_t gap) {
    if (l->count > 0 && start <= l->pieces[l->count - 1].end + gap) {
        piece *last = &l->pieces[l->count - 1];
        last->end = end > last->end ? end : last->end;
        return true;
    }
    if (!ARRAY_GROW(l->pieces, l->capacity, l->count + 1)) {
        return false;
    }
    l->pieces[l->count++] = (piece){.start = start, .end = end};
    return true;
}

static bool lay_pieces(layout *l, const record_header *header, const selection *subset, uint64_t gap, bool exact) {
    block_walk walk = {.record = l->head, .header = header, .subset = subset};
    wanted_block block;
    l->count = 0;
    bool done = add_piece(l, 0, header->head_bytes, gap);
    while (done && next_wanted_block(&walk, &block)) {
        uint64_t payload = block.offset - header->head_bytes;
        bool varies = header->encoding == ENCODING_PACKED && !exact;
        uint64_t before = varies ? payload / SLACK_SHARE : 0;
        uint64_t after = varies ? (payload + block.entry.bytes) / SLACK_SHARE + UNIT : 0;
        uint64_t end = block.offset + block.entry.bytes + after;
        done = add_piece(l, block.offset - before, end, gap);
    }
    return done;
}

/* Read the head of a record; -1: it cannot be read now. */
static ssize_t read_head(const bodhi_reader *r, const place *p, unsigned char *head, size_t size, enum fill_mode mode) {
    uint64_t offset = (uint64_t)p->offset * UNIT;
    if (r->locator->fetch != NULL) {
        fetched head_read = {.segment = p->segment, .offset = offset, .size = size, .to = head};
        r->locator->fetch(r->locator, &head_read, 1);
        return head_read.error == 0 ? (ssize_t)size : -1;
    }
    int fd = r->locator->pin(r->locator, p->segment, false);
    if (fd < 0) {
        return -1;
    }
    ssize_t got = io_read(fd, head, size, offset, mode == FILL_CACHED ? READ_CACHED : READ_ANY);
    r->locator->unpin(r->locator, p->segment);
    return got;
}

/* Look at the head of one record, so that those like it need not be read whole. False: not cached. */
static bool learn_layout(const bodhi_reader *r, layout *l, const place *p, enum fill_mode mode, bool exact) {
    size_t size = (size_t)p->head * UNIT;
    l->known = false;
    if (p->head == UINT16_MAX || !ARRAY_FIT(l->head, l->head_capacity, size)) {
        return true; /* records are read whole */
    }
    ssize_t got = read_head(r, p, l->head, size, mode);
    if (got < (ssize_t)size) {
        return mode != FILL_CACHED || got < 0;
    }
    record_header header;
    size_t more;
    uint64_t gap = gap_of(r, mode);
    l->known = parse_record(l->head, size, &r->locator->keys[p->segment], (uint64_t)p->offset * UNIT, &header, &more) ==
                   PARSED &&
               is_readable(&header) && lay_pieces(l, &header, &r->subset, gap, exact);
    l->like = *p;
    return true;
}

/* Whether what the window's last frames were like will do: a look at the next ones would wait for the other machine. */
static bool keeps_layout(const bodhi_reader *r, const window *w, const place *p) {
    const layout *l = &w->layout;
    return r->locator->fetch != NULL && w != &r->spare && l->known && !l->stale && is_like(p, &l->like);
}

/* Learn the layout from the first record of the window that is not read whole. False: not cached. */
static bool learn_window(const bodhi_reader *r, window *w, size_t n, enum fill_mode mode) {
    for (size_t i = 0; i < n; i++) {
        const place *p = &r->list[w->first + w->order[i]].place;
        if (!needs_all(&r->subset, p->fields)) {
            if (keeps_layout(r, w, p)) {
                return true;
            }
            w->layout.stale = false;
            bool exact = w == &r->spare || (n == 1 && r->locator->fetch == NULL); /* what is kept is for others, too */
            return learn_layout(r, &w->layout, p, mode, exact);
        }
    }
    w->layout.known = false;
    return true;
}

uint64_t window_needs(const bodhi_reader *r, const window *w, const place *p) {
    piece whole;
    size_t count;
    uint64_t bytes = 0;
    const piece *pieces = window_pieces(r, w, p, &whole, &count);
    for (size_t i = 0; i < count; i++) {
        uint64_t end = pieces[i].end < length_of(p) ? pieces[i].end : length_of(p);
        bytes += end > pieces[i].start ? end - pieces[i].start : 0;
    }
    return bytes;
}

void window_estimate(bodhi_reader *r, window *w, size_t index) {
    const place *p = &r->list[index].place;
    if (r->list[index].kind >= 0 && !needs_all(&r->subset, p->fields)) {
        (void)learn_layout(r, &w->layout, p, FILL_BUFFERED, false);
        r->part = (double)window_needs(r, w, p) / (double)length_of(p);
        w->layout.known = false;
    }
}

/* --- Planning a window ------------------------------------------------------------------------------------------- */

size_t window_count(const bodhi_reader *r, size_t first, uint64_t budget) {
    uint64_t bytes = 0;
    uint64_t span = 0;
    size_t count = 0;
    while (first + count < r->located && count < MAX_ITEMS) {
        const target *w = &r->list[first + count];
        if (w->kind >= 0) {
            uint64_t length = length_of(&w->place);
            bool part = r->part > 0 && !needs_all(&r->subset, w->place.fields);
            bytes += part ? (uint64_t)((double)length * r->part) : length;
            span += length;
        }
        if ((bytes > budget || span > budget * MAX_SPAN) && count > 0) {
            break;
        }
        count++;
    }
    return count;
}

static int compare_places(const place *a, const place *b) {
    if (a->segment != b->segment) {
        return a->segment < b->segment ? -1 : 1;
    }
    return a->offset < b->offset ? -1 : a->offset > b->offset;
}

static int by_place(const void *a, const void *b, void *list) {
    const target *requests = list;
    return compare_places(&requests[*(const uint32_t *)a].place, &requests[*(const uint32_t *)b].place);
}

/* List the frames that are there, in the order of the segments; returns their number. */
static size_t order_items(const bodhi_reader *r, window *w) {
    size_t n = 0;
    bool sorted = true;
    target *list = r->list + w->first;
    for (uint32_t i = 0; i < w->count; i++) {
        w->items[i].error = 0;
        w->items[i].checked = false;
        if (list[i].kind >= 0) {
            sorted = sorted && (n == 0 || compare_places(&list[w->order[n - 1]].place, &list[i].place) <= 0);
            w->order[n++] = i;
        }
    }
    if (!sorted) {
        qsort_r(w->order, n, sizeof *w->order, by_place, list);
    }
    return n;
}

/* Join neighbours into extents and lay these out in the buffer. Returns the bytes of buffer needed. */
static uint64_t lay_out(const bodhi_reader *r, window *w, size_t n) {
    uint64_t cursor = 0;
    w->n_extents = 0;
    for (size_t i = 0; i < n; i++) {
        const place *p = &r->list[w->first + w->order[i]].place;
        uint64_t offset = (uint64_t)p->offset * UNIT;
        uint64_t end = round_up(offset + length_of(p), PAGE);
        extent *last = w->n_extents > 0 ? &w->extents[w->n_extents - 1] : NULL;
        if (last != NULL && last->segment == p->segment && offset <= last->end + GAP_BYTES) {
            last->end = end > last->end ? end : last->end;
            last->last = i + 1;
        } else {
            cursor += last != NULL ? last->end - last->start : 0;
            last = &w->extents[w->n_extents++];
            *last = (extent){.segment = p->segment,
                             .start = offset / PAGE * PAGE,
                             .end = end,
                             .at = cursor,
                             .first = i,
                             .last = i + 1};
        }
        w->items[w->order[i]].at = last->at + (offset - last->start);
    }
    return w->n_extents == 0 ? 0 : cursor + w->extents[w->n_extents - 1].end - w->extents[w->n_extents - 1].start;
}

static bool reserve_items(window *w, size_t count) {
    if (w->items == NULL) {
        w->items = calloc(MAX_ITEMS, sizeof *w->items);
        w->order = malloc(MAX_ITEMS * sizeof *w->order);
        w->extents = malloc(MAX_ITEMS * sizeof *w->extents);
    }
    return w->items != NULL && w->order != NULL && w->extents != NULL && count <= MAX_ITEMS;
}

/* A direct read has the device write to the buffer page by page: into huge pages that took a third of the time. */
static bool reserve_buffer(window *w, uint64_t size, bool direct) {
    if (size <= w->capacity) {
        return true;
    }
    free(w->buffer);
    w->buffer = NULL;
    w->capacity = 0;
    bool huge = direct && size > HUGE_PAGE / 2;
    size = huge ? round_up(size, HUGE_PAGE) : size;
    void *buffer;
    if (posix_memalign(&buffer, huge ? HUGE_PAGE : PAGE, size) != 0) {
        return false;
    }
    if (huge) {
        (void)madvise(buffer, size, MADV_HUGEPAGE); /* small ones do as well */
    }
    w->buffer = buffer;
    w->capacity = size;
    return true;
}

void window_free(window *w) {
    free(w->buffer);
    free(w->items);
    free(w->order);
    free(w->extents);
    free(w->batch);
    free(w->layout.pieces);
    free(w->layout.head);
}

/* --- Requests ---------------------------------------------------------------------------------------------------- */

/* One request: parts of the items order[first] to order[last - 1] of an extent. */
typedef struct {
    uint64_t start, end; /* in the segment */
    size_t first, last;
} request;

/* A request went wrong: each of its items is read by itself when it is delivered. */
static void fail_items(window *w, size_t first, size_t last, int error) {
    for (size_t i = first; i < last; i++) {
        w->items[w->order[i]].error = error;
    }
}

/* Put a request into the window's batch. */
static void add_to_batch(window *w, const extent *e, const request *q) {
    if (!ARRAY_GROW(w->batch, w->batch_capacity, w->n_batch + 1)) {
        w->status = BODHI_ERROR_MEMORY;
        return;
    }
    w->batch[w->n_batch++] = (fetched){.segment = e->segment,
                                       .offset = q->start,
                                       .size = q->end - q->start,
                                       .to = w->buffer + e->at + (q->start - e->start),
                                       .first = q->first,
                                       .last = q->last};
}

/* False: the page cache does not have it all (only with FILL_CACHED). */
static bool read_request(const bodhi_reader *r, window *w, const extent *e, const request *q, int fd,
                         enum fill_mode mode) {
    if (r->locator->fetch != NULL) {
        add_to_batch(w, e, q);
        return true;
    }
    uint64_t start = mode == FILL_DIRECT ? q->start / PAGE * PAGE : q->start;
    uint64_t end = mode == FILL_DIRECT ? round_up(q->end, PAGE) : q->end;
    ssize_t got = io_read(fd, w->buffer + e->at + (start - e->start), (size_t)(end - start), start,
                          mode == FILL_CACHED ? READ_CACHED : READ_ANY);
    bool all = got >= 0 && start + (uint64_t)got >= q->end;
    if (!all && got >= 0 && mode == FILL_CACHED) {
        return false;
    }
    if (!all) {
        fail_items(w, q->first, q->last, got < 0 ? errno : -1);
    }
    return true;
}

/* Issue the requests of an extent; those that nearly touch are one. */
static bool read_extent(const bodhi_reader *r, window *w, const extent *e, int fd, enum fill_mode mode) {
    uint64_t gap = gap_of(r, mode);
    request q = {.first = e->last};
    for (size_t i = e->first; i < e->last; i++) {
        const place *p = &r->list[w->first + w->order[i]].place;
        piece whole;
        size_t count;
        const piece *pieces = window_pieces(r, w, p, &whole, &count);
        uint64_t offset = (uint64_t)p->offset * UNIT;
        for (size_t k = 0; k < count && pieces[k].start < length_of(p); k++) {
            uint64_t start = offset + pieces[k].start;
            uint64_t end = offset + (pieces[k].end < length_of(p) ? pieces[k].end : length_of(p));
            if (q.first == e->last || start > q.end + gap) {
                if (q.first != e->last && !read_request(r, w, e, &q, fd, mode)) {
                    return false;
                }
                q = (request){.start = start, .end = end, .first = i};
            }
            q.end = end > q.end ? end : q.end;
            q.last = i + 1;
        }
    }
    return q.first == e->last || read_request(r, w, e, &q, fd, mode);
}

static bool fill_extent(const bodhi_reader *r, window *w, const extent *e, enum fill_mode mode) {
    int fd = r->locator->pin(r->locator, e->segment, mode == FILL_DIRECT);
    if (fd < 0) {
        fail_items(w, e->first, e->last, errno);
        return true;
    }
    bool there = read_extent(r, w, e, fd, mode);
    r->locator->unpin(r->locator, e->segment);
    return there;
}

/* Bring what all extents of a window need. */
static void fetch_batch(const bodhi_reader *r, window *w) {
    w->n_batch = 0;
    for (size_t i = 0; i < w->n_extents; i++) {
        (void)read_extent(r, w, &w->extents[i], -1, FILL_BUFFERED);
    }
    if (w->status != BODHI_OK || w->n_batch == 0) {
        return;
    }
    r->locator->fetch(r->locator, w->batch, w->n_batch);
    for (size_t i = 0; i < w->n_batch; i++) {
        const fetched *got = &w->batch[i];
        if (got->error != 0) {
            fail_items(w, got->first, got->last, got->error);
        }
    }
}

bool window_fill(const bodhi_reader *r, window *w, size_t first, uint64_t budget, enum fill_mode mode) {
    w->first = first;
    w->count = window_count(r, first, budget);
    w->status = BODHI_OK;
    bool memory = reserve_items(w, w->count);
    if (memory) {
        size_t n = order_items(r, w);
        if (!learn_window(r, w, n, mode)) {
            return false;
        }
        memory = reserve_buffer(w, lay_out(r, w, n), mode == FILL_DIRECT);
    }
    if (!memory) {
        w->status = BODHI_ERROR_MEMORY;
        return true;
    }
    if (r->locator->fetch != NULL) {
        fetch_batch(r, w);
        return true;
    }
    for (size_t i = 0; i < w->n_extents; i++) {
        if (!fill_extent(r, w, &w->extents[i], mode)) {
            return false;
        }
    }
    return true;
}
