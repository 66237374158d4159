/* Putting together the table of a segment; see frame_table.h. */
#include <stdlib.h>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/memory.h"
#include "segments/frame_table.h"

enum { REGULAR_LEAST = 64 }; /* frames that are told by a run alone; of fewer, each costs more memory than a page */

/* A table in the making. */
typedef struct {
    const place *places;
    size_t n;
    table_run *runs;
    size_t n_runs, run_capacity;
    unsigned char *pages;
    size_t page_bytes, page_capacity;
} layout;

uint32_t table_page_checksum(uint64_t stamp, uint32_t number, const unsigned char page[TABLE_PAGE]) {
    unsigned char where[12];
    put64(where, stamp);
    put32(where + 8, number);
    return bodhi_crc32c(bodhi_crc32c(0, where, sizeof where), page + 4, TABLE_PAGE - 4);
}

/* --- Runs -------------------------------------------------------------------------------------------------------- */

static bool is_alike(const place *a, const place *b) {
    return a->length == b->length && a->head == b->head && a->fields == b->fields && b->offset > a->offset;
}

/* How many of `n` frames are as far apart as the first two, in number and place, and else alike. */
static size_t count_regular(const place *p, size_t n) {
    size_t end = 1;
    while (end < n && end < UINT32_MAX && is_alike(&p[end - 1], &p[end]) &&
           p[end].number - p[end - 1].number == p[1].number - p[0].number &&
           p[end].offset - p[end - 1].offset == p[1].offset - p[0].offset) {
        end++;
    }
    return n > 1 && p[1].number - p[0].number > UINT32_MAX ? 1 : end;
}

/* How far apart the numbers of frames are, of which there are as many as a page takes; 0: not evenly. */
static uint32_t step_of(const place *p, size_t n) {
    uint64_t step = n > 1 ? p[1].number - p[0].number : 1;
    for (size_t i = 1; i < n && step > 0; i++) {
        step = p[i].number - p[i - 1].number == step ? step : 0;
    }
    return (uint32_t)step;
}

/* Tell frames, each by itself, by a page. Returns how many; 0: memory is out. */
static size_t add_page(layout *l, const place *p, size_t n) {
    size_t count = 0;
    if (!ARRAY_GROW(l->pages, l->page_capacity, l->page_bytes + TABLE_PAGE)) {
        return 0;
    }
    unsigned char *page = l->pages + l->page_bytes;
    memset(page, 0, TABLE_PAGE);
    for (; count < n && count < PLACES_IN_PAGE && p[count].number - p[0].number <= UINT32_MAX; count++) {
        unsigned char *out = page + TABLE_PAGE_HEAD + count * PLACE_BYTES;
        put32(out, (uint32_t)(p[count].number - p[0].number));
        put32(out + 4, p[count].offset);
        put32(out + 8, p[count].length);
        put16(out + 12, p[count].head);
        out[14] = p[count].fields;
    }
    l->page_bytes += TABLE_PAGE;
    return count;
}

/* False: memory is out. */
static bool lay_out(layout *l) {
    for (size_t at = 0; at < l->n;) {
        const place *p = &l->places[at];
        size_t n = count_regular(p, l->n - at);
        table_run run = {.first = p->number};
        if (n >= REGULAR_LEAST) {
            run = (table_run){.first = p->number,
                              .step = (uint32_t)(p[1].number - p[0].number),
                              .offset = p->offset,
                              .stride = p[1].offset - p[0].offset,
                              .length = p->length,
                              .head = p->head,
                              .fields = p->fields};
        } else {
            run.offset = (uint32_t)(l->page_bytes / TABLE_PAGE);
            n = add_page(l, p, l->n - at);
            run.step = step_of(p, n);
        }
        run.count = (uint32_t)n;
        if (n == 0 || !ARRAY_GROW(l->runs, l->run_capacity, l->n_runs + 1)) {
            return false;
        }
        l->runs[l->n_runs++] = run;
        at += n;
    }
    return true;
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

/* Pages follow the directory, from number `first` on. */
static unsigned char *put_runs(unsigned char *out, const layout *l, uint32_t first) {
    for (size_t i = 0; i < l->n_runs; i++, out += RUN_BYTES) {
        table_run r = l->runs[i];
        r.offset += r.stride == 0 ? first : 0;
        memcpy(out, &r, sizeof r);
    }
    return out;
}

static unsigned char *put_together(const layout *l, const segment *s, table_facts *facts, const tombstone *tombstones,
                                   size_t *size) {
    size_t directory = l->n_runs * RUN_BYTES + facts->n_tombstones * TOMBSTONE_ENTRY_BYTES;
    uint32_t first = (uint32_t)(round_up(TABLE_HEAD_BYTES + directory, TABLE_PAGE) / TABLE_PAGE);
    facts->n_pages = first + (uint32_t)(l->page_bytes / TABLE_PAGE);
    *size = (size_t)facts->n_pages * TABLE_PAGE;
    unsigned char *out = calloc(1, *size);
    if (out == NULL) {
        return NULL;
    }
    write_file_header(out, MAGIC_TABLE, &s->key, s->kind);
    memcpy(out + SEGMENT_HEADER_BYTES, facts, sizeof *facts);
    unsigned char *at = put_runs(out + TABLE_HEAD_BYTES, l, first);
    if (facts->n_tombstones > 0) {
        memcpy(at, tombstones, facts->n_tombstones * sizeof *tombstones);
    }
    unsigned char *checked = out + SEGMENT_HEADER_BYTES + 4;
    put32(out + SEGMENT_HEADER_BYTES, bodhi_crc32c(0, checked, TABLE_FACTS_BYTES - 4 + directory));
    if (l->page_bytes > 0) {
        memcpy(out + (size_t)first * TABLE_PAGE, l->pages, l->page_bytes);
    }
    for (uint32_t page = first; page < facts->n_pages; page++) {
        unsigned char *p = out + (size_t)page * TABLE_PAGE;
        put32(p, table_page_checksum(facts->stamp, page, p));
    }
    return out;
}

unsigned char *seal_layout(const segment *s, uint64_t stamp, place *places, size_t n, const tombstone *tombstones,
                           size_t n_tombstones, size_t *size) {
    layout l = {.places = places, .n = arrange(places, n)};
    bool laid_out = lay_out(&l);
    table_facts facts = {.stamp = stamp,
                         .covered = s->covered,
                         .index_at = s->index_at,
                         .index_inode = s->index_inode,
                         .frames = l.n,
                         .low = l.n == 0 ? 1 : places[0].number,
                         .high = l.n == 0 ? 0 : places[l.n - 1].number,
                         .n_runs = l.n_runs,
                         .n_tombstones = n_tombstones};
    unsigned char *out = laid_out ? put_together(&l, s, &facts, tombstones, size) : NULL;
    free(l.runs);
    free(l.pages);
    return out;
}
