/* Asking the table of a segment, page by page; see frame_table.h. */
#include "segments/frame_table.h"

#include <fcntl.h>
#include <stdlib.h>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/io.h"
#include "base/memory.h"

enum { PAGES_AT_ONCE = 64 };

/* --- Pages ------------------------------------------------------------------------------------------------------- */

static bool is_right(const sealed *t, uint32_t number, const unsigned char *page) {
    return get32(page) == table_page_checksum(t->stamp, number, page) || bodhi_bypass_checksums;
}

/* What a page holds; NULL: torn. */
static const unsigned char *load_page(sealed *t, int directory, uint32_t number) {
    if (t->page == number) {
        return t->page_bytes + TABLE_PAGE_HEAD;
    }
    if (t->page_bytes == NULL && (t->page_bytes = malloc(TABLE_PAGE)) == NULL) {
        return NULL;
    }
    t->page = 0;
    int fd = io_open(directory, t->name, O_RDONLY);
    if (fd < 0) {
        return NULL;
    }
    if (io_read(fd, t->page_bytes, TABLE_PAGE, (uint64_t)number * TABLE_PAGE, READ_ANY) == TABLE_PAGE &&
        is_right(t, number, t->page_bytes)) {
        t->page = number;
    }
    io_drop(fd);
    return t->page == number ? t->page_bytes + TABLE_PAGE_HEAD : NULL;
}

/* Pages that are read one after the other. */
typedef struct {
    const sealed *t;
    int directory, fd; /* -1: not open yet */
    unsigned char *buffer;
    uint32_t first, n, end; /* those in the buffer; nothing is wanted from `end` on */
} page_row;

static const unsigned char *row_page(page_row *row, uint32_t number) {
    if (number < row->first || number >= row->first + row->n) {
        uint32_t n = row->end - number < PAGES_AT_ONCE ? row->end - number : PAGES_AT_ONCE;
        if (row->fd < 0) {
            row->fd = io_open(row->directory, row->t->name, O_RDONLY);
            row->buffer = malloc((size_t)n * TABLE_PAGE);
        }
        size_t wanted = (size_t)n * TABLE_PAGE;
        row->n = 0;
        if (row->fd < 0 || row->buffer == NULL ||
            io_read(row->fd, row->buffer, wanted, (uint64_t)number * TABLE_PAGE, READ_ANY) != (ssize_t)wanted) {
            return NULL;
        }
        row->first = number;
        row->n = n;
    }
    const unsigned char *page = row->buffer + (size_t)(number - row->first) * TABLE_PAGE;
    return is_right(row->t, number, page) ? page + TABLE_PAGE_HEAD : NULL;
}

static void row_close(page_row *row) {
    free(row->buffer);
    io_drop(row->fd);
}

/* --- Finding ----------------------------------------------------------------------------------------------------- */

/* The last run that begins at `number` or before it; 0 if there is none. */
static size_t run_of(const sealed *t, uint64_t number) {
    size_t behind;
    ARRAY_SEARCH(behind, t->n_runs, i, t->runs[i].first <= number);
    return behind == 0 ? 0 : behind - 1;
}

/* The place of a number in a page; `count`: it is not there. */
static size_t find_in_page(const unsigned char *payload, const table_run *r, uint64_t number) {
    size_t at;
    ARRAY_SEARCH(at, r->count, i, get32(payload + i * PLACE_BYTES) < number - r->first);
    return at < r->count && get32(payload + at * PLACE_BYTES) == number - r->first ? at : r->count;
}

/* Where a frame lies, dead or not. */
static enum sealed_answer find(sealed *t, int directory, uint64_t number, place *copy) {
    if (number < t->low || number > t->high) {
        return SEALED_ABSENT;
    }
    const table_run *r = &t->runs[run_of(t, number)];
    uint64_t turn = r->step > 0 ? (number - r->first) / r->step : 0;
    if (turn >= r->count || (r->step > 0 && turn * r->step != number - r->first)) {
        return SEALED_ABSENT;
    }
    *copy = (place){.number = number, .segment = t->ordinal};
    if (r->stride > 0) {
        copy->offset = r->offset + (uint32_t)turn * r->stride;
        copy->length = r->length;
        copy->head = r->head;
        copy->fields = r->fields;
        return SEALED_FOUND;
    }
    const unsigned char *payload = load_page(t, directory, r->offset);
    if (payload == NULL) {
        return SEALED_TORN;
    }
    turn = r->step > 0 ? turn : find_in_page(payload, r, number);
    if (turn == r->count) {
        return SEALED_ABSENT;
    }
    const unsigned char *at = payload + turn * PLACE_BYTES;
    copy->offset = get32(at + 4);
    copy->length = get32(at + 8);
    copy->head = get16(at + 12);
    copy->fields = at[14];
    return SEALED_FOUND;
}

enum sealed_answer sealed_find(sealed *t, int directory, uint64_t number, place *copy) {
    return sealed_is_dead(t, number) ? SEALED_ABSENT : find(t, directory, number, copy);
}

enum sealed_answer sealed_keeps(sealed *t, int directory, const place *copy) {
    place there;
    size_t at = sealed_dead_from(t, copy->number);
    if (at < t->n_dead && t->dead[at] == 2 * copy->number) {
        return SEALED_ABSENT;
    }
    enum sealed_answer answer = find(t, directory, copy->number, &there);
    return answer == SEALED_FOUND && there.offset != copy->offset ? SEALED_ABSENT : answer;
}

bool sealed_next(const sealed *t, uint64_t from, uint64_t *number) {
    if (t->frames == 0 || from > t->high) {
        return false;
    }
    size_t i = run_of(t, from);
    const table_run *s = &t->runs[i];
    uint64_t next = i + 1 < t->n_runs ? t->runs[i + 1].first : t->high;
    uint64_t last = s->step > 0         ? s->first + (uint64_t)(s->count - 1) * s->step
                    : i + 1 < t->n_runs ? next - 1
                                        : t->high;
    *number = from <= s->first ? s->first : from <= last ? from : next;
    return true;
}

/* --- All of them ------------------------------------------------------------------------------------------------- */

typedef struct {
    const frame_selection *chosen;
    uint64_t low, high; /* of these numbers */
    uint64_t *words;
} marking;

static void mark_number(const marking *m, uint64_t number) {
    uint64_t offset = number - m->low;
    uint64_t turn = m->chosen->step <= 1 ? offset : offset / m->chosen->step;
    if (turn * m->chosen->step == offset) {
        uint64_t bit = selection_bit(m->chosen, turn);
        m->words[bit / 64] |= UINT64_C(1) << bit % 64;
    }
}

static void mark_even(const marking *m, uint64_t first, uint64_t step, uint64_t count) {
    const frame_selection *chosen = m->chosen;
    if (step == 1 && count > 1) {
        uint64_t from = selection_turn(chosen, first);
        uint64_t to = selection_turn(chosen, first + count);
        if (chosen->backwards) {
            words_set(m->words, chosen->count - to, chosen->count - from);
        } else {
            words_set(m->words, from, to);
        }
        return;
    }
    for (uint64_t i = 0; i < count; i++) {
        mark_number(m, first + i * step);
    }
}

/* Mark even frames but those that are dead. */
static void mark_run(const sealed *t, const table_run *r, const marking *m) {
    uint64_t from = m->low <= r->first ? 0 : (m->low - r->first - 1) / r->step + 1;
    uint64_t end = m->high < r->first ? 0 : (m->high - r->first) / r->step + 1;
    end = end < r->count ? end : r->count;
    for (size_t i = sealed_dead_from(t, r->first + from * r->step); from < end;) {
        uint64_t dead = i < t->n_dead ? t->dead[i++] / 2 : UINT64_MAX; /* all of them were found in the table */
        uint64_t turn = (dead - r->first) / r->step;
        uint64_t stop = turn < end ? turn : end;
        if (from < stop) {
            mark_even(m, r->first + from * r->step, r->step, stop - from);
        }
        from = stop + 1;
    }
}

static void mark_page(const sealed *t, const table_run *r, const unsigned char *payload, const marking *m) {
    for (uint32_t i = 0; i < r->count; i++) {
        uint64_t number = r->first + get32(payload + (size_t)i * PLACE_BYTES);
        if (number >= m->low && number <= m->high && !sealed_is_dead(t, number)) {
            mark_number(m, number);
        }
    }
}

// NOLINTNEXTLINE(readability-non-const-parameter): marks are written there
bool sealed_mark(const sealed *t, int directory, const frame_selection *chosen, uint64_t *words) {
    const marking m = {.chosen = chosen, .low = chosen->low, .high = selection_last(chosen), .words = words};
    if (t->frames == 0 || t->high < m.low || t->low > m.high) {
        return true;
    }
    size_t i = run_of(t, m.low);
    size_t last = run_of(t, m.high);
    page_row row = {.t = t, .directory = directory, .fd = -1};
    for (size_t j = i; j <= last; j++) { /* pages are in the order of runs */
        row.end = t->runs[j].step == 0 ? t->runs[j].offset + 1 : row.end;
    }
    bool whole = true;
    for (; i <= last && whole; i++) {
        const table_run *r = &t->runs[i];
        const unsigned char *payload = r->step > 0 ? NULL : row_page(&row, r->offset);
        whole = r->step > 0 || payload != NULL;
        if (r->step > 0) {
            mark_run(t, r, &m);
        } else if (whole) {
            mark_page(t, r, payload, &m);
        }
    }
    row_close(&row);
    return whole;
}
