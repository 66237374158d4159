/* Putting together the table of a segment; see sealed.h. */
#include <stdlib.h>

#include "base/crc32c.h"
#include "segments/sealed.h"

enum {
    REGULAR_LEAST = 64, /* frames that are told by a span or a stretch; of fewer, each costs more memory than a page */
    PLACES_IN_PAGE = TABLE_PAYLOAD / PLACE_BYTES
};

/* Bytes that grow. */
typedef struct {
    unsigned char *data;
    size_t size, capacity;
} bytes;

/* A table in the making. The pages of places are behind those of numbers, whose number is known at last. */
typedef struct {
    const place *places;
    size_t n;
    uint64_t stamp;
    bytes spans, stretches, number_pages, place_pages;
    bool no_memory;
} layout;

/* Room for `size` more bytes, which are zeros; NULL: memory is out. */
static unsigned char *more(layout *l, bytes *b, size_t size) {
    if (b->size + size > b->capacity) {
        size_t capacity = b->size + size > 2 * b->capacity ? b->size + size : 2 * b->capacity;
        unsigned char *grown = realloc(b->data, capacity);
        if (grown == NULL) {
            l->no_memory = true;
            return NULL;
        }
        b->data = grown;
        b->capacity = capacity;
    }
    unsigned char *at = b->data + b->size;
    memset(at, 0, size);
    b->size += size;
    return at;
}

uint32_t table_page_checksum(uint64_t stamp, uint32_t number, const unsigned char page[TABLE_PAGE]) {
    unsigned char where[12];
    put64(where, stamp);
    put32(where + 8, number);
    return bodhi_crc32c(bodhi_crc32c(0, where, sizeof where), page + 4, TABLE_PAGE - 4);
}

/* --- Numbers ----------------------------------------------------------------------------------------------------- */

/* How many frames from `at` on are `*step` apart. */
static size_t count_even(const layout *l, size_t at, uint64_t *step) {
    size_t end = at + 1;
    *step = 1;
    if (end < l->n) {
        *step = l->places[end].number - l->places[at].number;
        while (*step <= UINT32_MAX && end < l->n && l->places[end].number - l->places[end - 1].number == *step) {
            end++;
        }
    }
    return end - at;
}

/* How many frames from `at` on a page of bits takes. */
static size_t count_dense(const layout *l, size_t at) {
    uint64_t end = l->places[at].number + LEAF_NUMBERS;
    size_t low = at;
    size_t high = l->n - at > LEAF_NUMBERS ? at + LEAF_NUMBERS : l->n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (l->places[middle].number < end) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low - at;
}

static void add_span(layout *l, const table_span *s) {
    unsigned char *out = more(l, &l->spans, SPAN_BYTES);
    if (out != NULL) {
        put64(out, s->first);
        put64(out + 8, s->rank);
        put32(out + 16, s->step);
        put32(out + 20, s->page);
    }
}

/* Add a page of `n` frames: as bits from `first` on, or as numbers. */
static void add_leaf(layout *l, size_t at, size_t n, bool list) {
    uint64_t first = l->places[at].number;
    table_span s = {
        .first = first, .rank = at, .page = (uint32_t)(l->number_pages.size / TABLE_PAGE) | (list ? SPAN_LIST : 0)};
    unsigned char *page = more(l, &l->number_pages, TABLE_PAGE);
    add_span(l, &s);
    if (page == NULL) {
        return;
    }
    unsigned char *payload = page + TABLE_PAGE_HEAD;
    if (list) {
        memset(payload, 0xFF, TABLE_PAYLOAD); /* what is not used is above all numbers */
        for (size_t i = 0; i < n; i++) {
            put64(payload + 8 * i, l->places[at + i].number);
        }
        return;
    }
    for (size_t i = 0; i < n; i++) {
        uint64_t bit = l->places[at + i].number - first;
        payload[bit / 8] |= (unsigned char)(1U << bit % 8);
    }
}

static void lay_out_numbers(layout *l) {
    for (size_t at = 0; at < l->n && !l->no_memory;) {
        uint64_t step;
        size_t even = count_even(l, at, &step);
        size_t dense = count_dense(l, at);
        size_t listed = l->n - at < LEAF_WORDS ? l->n - at : LEAF_WORDS;
        size_t in_page = dense > listed ? dense : listed;
        if (even >= REGULAR_LEAST && even >= in_page / (TABLE_PAGE / SPAN_BYTES)) {
            table_span s = {.first = l->places[at].number, .rank = at, .step = (uint32_t)step};
            add_span(l, &s);
            at += even;
        } else {
            add_leaf(l, at, in_page, dense < listed);
            at += in_page;
        }
    }
}

/* --- Places ------------------------------------------------------------------------------------------------------ */

static bool is_alike(const place *a, const place *b) {
    return a->length == b->length && a->head == b->head && a->fields == b->fields && b->offset > a->offset;
}

/* How many places from `at` on are alike and `*stride` apart. */
static size_t count_strided(const layout *l, size_t at, uint32_t *stride) {
    const place *p = l->places;
    size_t end = at + 1;
    *stride = 1;
    if (end < l->n && is_alike(&p[at], &p[end])) {
        *stride = p[end].offset - p[at].offset;
        while (end < l->n && is_alike(&p[end - 1], &p[end]) && p[end].offset - p[end - 1].offset == *stride) {
            end++;
        }
    }
    return end - at;
}

static void add_stretch(layout *l, const table_stretch *s) {
    unsigned char *out = more(l, &l->stretches, STRETCH_BYTES);
    if (out != NULL) {
        put64(out, s->rank);
        put32(out + 8, s->offset);
        put32(out + 12, s->stride);
        put32(out + 16, s->length);
        put16(out + 20, s->head);
        out[22] = s->fields;
        put32(out + 24, s->page);
    }
}

static void add_places(layout *l, size_t at, size_t n) {
    table_stretch s = {.rank = at, .page = (uint32_t)(l->place_pages.size / TABLE_PAGE)};
    unsigned char *page = more(l, &l->place_pages, TABLE_PAGE);
    add_stretch(l, &s);
    for (size_t i = 0; page != NULL && i < n; i++) {
        unsigned char *out = page + TABLE_PAGE_HEAD + i * PLACE_BYTES;
        const place *p = &l->places[at + i];
        put32(out, p->offset);
        put32(out + 4, p->length);
        put16(out + 8, p->head);
        out[10] = p->fields;
    }
}

static void lay_out_places(layout *l) {
    for (size_t at = 0; at < l->n && !l->no_memory;) {
        uint32_t stride;
        size_t n = count_strided(l, at, &stride);
        if (n >= REGULAR_LEAST) {
            const place *p = &l->places[at];
            table_stretch s = {.rank = at,
                               .offset = p->offset,
                               .stride = stride,
                               .length = p->length,
                               .head = p->head,
                               .fields = p->fields};
            add_stretch(l, &s);
        } else {
            n = l->n - at < PLACES_IN_PAGE ? l->n - at : PLACES_IN_PAGE;
            add_places(l, at, n);
        }
        at += n;
    }
}

/* --- The whole --------------------------------------------------------------------------------------------------- */

static int by_number_and_offset(const void *left, const void *right) {
    const place *a = left;
    const place *b = right;
    if (a->number != b->number) {
        return a->number < b->number ? -1 : 1;
    }
    return a->offset < b->offset ? -1 : a->offset > b->offset;
}

/* Sort, and keep the later of those that are there twice: it was written because the earlier had been lost. */
static size_t arrange(place *places, size_t n) {
    bool sorted = true;
    for (size_t i = 1; i < n && sorted; i++) {
        sorted = places[i - 1].number < places[i].number;
    }
    if (sorted) {
        return n;
    }
    qsort(places, n, sizeof *places, by_number_and_offset);
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        kept -= kept > 0 && places[kept - 1].number == places[i].number;
        places[kept++] = places[i];
    }
    return kept;
}

static void put_facts(unsigned char *out, const table_facts *f) {
    const uint64_t numbers[10] = {f->stamp, f->covered, f->index_at, f->index_inode, f->frames,
                                  f->low,   f->high,    f->n_spans,  f->n_stretches, f->n_tombstones};
    put32(out + 4, f->n_pages);
    for (size_t i = 0; i < 10; i++) {
        put64(out + 8 + 8 * i, numbers[i]);
    }
}

/* Pages follow the directory: the numbers of those that spans and stretches tell become those in the file. */
static void number_pages(layout *l, uint32_t first) {
    uint32_t n_leaves = (uint32_t)(l->number_pages.size / TABLE_PAGE);
    for (size_t at = 0; at < l->spans.size; at += SPAN_BYTES) {
        unsigned char *s = l->spans.data + at;
        if (get32(s + 16) == 0) {
            put32(s + 20, get32(s + 20) + first);
        }
    }
    for (size_t at = 0; at < l->stretches.size; at += STRETCH_BYTES) {
        unsigned char *s = l->stretches.data + at;
        if (get32(s + 12) == 0) {
            put32(s + 24, get32(s + 24) + first + n_leaves);
        }
    }
}

static unsigned char *append(unsigned char *out, const bytes *b) {
    if (b->size > 0) {
        memcpy(out, b->data, b->size);
    }
    return out + b->size;
}

static unsigned char *put_together(layout *l, const segment *s, table_facts *facts, const tombstone *tombstones,
                                   size_t *size) {
    size_t directory = l->spans.size + l->stretches.size + facts->n_tombstones * TOMBSTONE_ENTRY_BYTES;
    uint32_t first = (uint32_t)(round_up(TABLE_HEAD_BYTES + directory, TABLE_PAGE) / TABLE_PAGE);
    facts->n_pages = first + (uint32_t)((l->number_pages.size + l->place_pages.size) / TABLE_PAGE);
    *size = (size_t)facts->n_pages * TABLE_PAGE;
    unsigned char *out = calloc(1, *size);
    if (out == NULL) {
        return NULL;
    }
    write_file_header(out, MAGIC_TABLE, &s->key, s->kind);
    put_facts(out + SEGMENT_HEADER_BYTES, facts);
    number_pages(l, first);
    unsigned char *at = append(append(out + TABLE_HEAD_BYTES, &l->spans), &l->stretches);
    for (size_t i = 0; i < facts->n_tombstones; i++, at += TOMBSTONE_ENTRY_BYTES) {
        put64(at, tombstones[i].segment);
        put64(at + 8, tombstones[i].offset);
        put64(at + 16, tombstones[i].number);
    }
    unsigned char *checked = out + SEGMENT_HEADER_BYTES + 4;
    put32(out + SEGMENT_HEADER_BYTES, bodhi_crc32c(0, checked, TABLE_FACTS_BYTES - 4 + directory));
    (void)append(append(out + (size_t)first * TABLE_PAGE, &l->number_pages), &l->place_pages);
    for (uint32_t page = first; page < facts->n_pages; page++) {
        unsigned char *p = out + (size_t)page * TABLE_PAGE;
        put32(p, table_page_checksum(facts->stamp, page, p));
    }
    return out;
}

unsigned char *seal_layout(const segment *s, uint64_t stamp, place *places, size_t n, const tombstone *tombstones,
                           size_t n_tombstones, size_t *size) {
    layout l = {.places = places, .n = arrange(places, n), .stamp = stamp};
    lay_out_numbers(&l);
    lay_out_places(&l);
    table_facts facts = {.stamp = stamp,
                         .covered = s->covered,
                         .index_at = s->index_at,
                         .index_inode = s->index_inode,
                         .frames = l.n,
                         .low = l.n == 0 ? 1 : places[0].number,
                         .high = l.n == 0 ? 0 : places[l.n - 1].number,
                         .n_spans = l.spans.size / SPAN_BYTES,
                         .n_stretches = l.stretches.size / STRETCH_BYTES,
                         .n_tombstones = n_tombstones};
    unsigned char *out = l.no_memory ? NULL : put_together(&l, s, &facts, tombstones, size);
    free(l.spans.data);
    free(l.stretches.data);
    free(l.number_pages.data);
    free(l.place_pages.data);
    return out;
}
