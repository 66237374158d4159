/* Asking the table of a segment, page by page; see sealed.h. */
#include "segments/sealed.h"

#include <fcntl.h>
#include <stdlib.h>

#include "base/crc32c.h"
#include "base/io.h"

enum { PAGES_AT_ONCE = 128 };

/* --- Pages ------------------------------------------------------------------------------------------------------- */

static bool is_right(const sealed *t, uint32_t number, const unsigned char *page) {
    return get32(page) == table_page_checksum(t->stamp, number, page) || bodhi_bypass_checksums;
}

/* What a page holds; NULL: torn. */
static const unsigned char *load_page(const sealed *t, int directory, table_page *last, uint32_t number) {
    if (last->number == number) {
        return last->bytes + TABLE_PAGE_HEAD;
    }
    if (last->bytes == NULL && (last->bytes = malloc(TABLE_PAGE)) == NULL) {
        return NULL;
    }
    last->number = 0;
    int fd = io_open(directory, t->name, O_RDONLY);
    if (fd < 0) {
        return NULL;
    }
    if (io_read(fd, last->bytes, TABLE_PAGE, (uint64_t)number * TABLE_PAGE, READ_ANY) == TABLE_PAGE &&
        is_right(t, number, last->bytes)) {
        last->number = number;
    }
    (void)io_close(fd);
    return last->number == number ? last->bytes + TABLE_PAGE_HEAD : NULL;
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
    if (row->fd >= 0) {
        (void)io_close(row->fd);
    }
}

/* --- Finding ----------------------------------------------------------------------------------------------------- */

/* The last span that begins at `number` or before it; 0 if there is none. */
static size_t span_of(const sealed *t, uint64_t number) {
    size_t low = 0;
    size_t n = t->n_spans;
    while (n > 1) {
        size_t half = n / 2;
        if (t->spans[low + half].first <= number) {
            low += half;
            n -= half;
        } else {
            n = half;
        }
    }
    return low;
}

static size_t stretch_of(const sealed *t, uint64_t rank) {
    size_t low = 0;
    size_t n = t->n_stretches;
    while (n > 1) {
        size_t half = n / 2;
        if (t->stretches[low + half].rank <= rank) {
            low += half;
            n -= half;
        } else {
            n = half;
        }
    }
    return low;
}

/* The rank of a number among those of a page. */
static enum sealed_answer rank_in_page(const unsigned char *payload, const table_span *s, uint64_t count,
                                       uint64_t number, uint64_t *rank) {
    uint64_t found = 0;
    if ((s->page & SPAN_LIST) != 0) {
        while (found < count && get64(payload + 8 * found) < number) {
            found++;
        }
        if (found == count || get64(payload + 8 * found) != number) {
            return SEALED_ABSENT;
        }
    } else {
        uint64_t bit = number - s->first;
        if (bit >= LEAF_NUMBERS || (payload[bit / 8] >> bit % 8 & 1) == 0) {
            return SEALED_ABSENT;
        }
        for (uint64_t word = 0; word < bit / 64; word++) {
            found += (uint64_t)__builtin_popcountll(get64(payload + 8 * word));
        }
        uint64_t below = (UINT64_C(1) << bit % 64) - 1;
        found += (uint64_t)__builtin_popcountll(get64(payload + 8 * (bit / 64)) & below);
    }
    *rank = s->rank + found;
    return found < count ? SEALED_FOUND : SEALED_TORN;
}

static enum sealed_answer rank_of(sealed *t, int directory, uint64_t number, uint64_t *rank) {
    size_t i = span_of(t, number);
    const table_span *s = &t->spans[i];
    uint64_t count = sealed_count(t, i);
    if (s->step > 0) {
        uint64_t turn = (number - s->first) / s->step;
        *rank = s->rank + turn;
        return turn < count && turn * s->step == number - s->first ? SEALED_FOUND : SEALED_ABSENT;
    }
    const unsigned char *payload = load_page(t, directory, &t->numbers, s->page & ~SPAN_LIST);
    return payload == NULL ? SEALED_TORN : rank_in_page(payload, s, count, number, rank);
}

/* Where a frame lies, dead or not. */
static enum sealed_answer find(sealed *t, int directory, uint64_t number, place *copy) {
    uint64_t rank;
    if (number < t->low || number > t->high) {
        return SEALED_ABSENT;
    }
    enum sealed_answer answer = rank_of(t, directory, number, &rank);
    if (answer != SEALED_FOUND) {
        return answer;
    }
    const table_stretch *s = &t->stretches[stretch_of(t, rank)];
    *copy = (place){.number = number, .segment = t->ordinal};
    if (s->stride > 0) {
        copy->offset = s->offset + (uint32_t)(rank - s->rank) * s->stride;
        copy->length = s->length;
        copy->head = s->head;
        copy->fields = s->fields;
        return SEALED_FOUND;
    }
    const unsigned char *payload = load_page(t, directory, &t->places, s->page);
    if (payload == NULL) {
        return SEALED_TORN;
    }
    const unsigned char *at = payload + (rank - s->rank) * PLACE_BYTES;
    copy->offset = get32(at);
    copy->length = get32(at + 4);
    copy->head = get16(at + 8);
    copy->fields = at[10];
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
    size_t i = span_of(t, from);
    const table_span *s = &t->spans[i];
    uint64_t last = s->step > 0                  ? s->first + (sealed_count(t, i) - 1) * s->step
                    : (s->page & SPAN_LIST) != 0 ? t->high
                                                 : s->first + LEAF_NUMBERS - 1;
    uint64_t next = i + 1 < t->n_spans ? t->spans[i + 1].first : t->high;
    *number = from <= s->first ? s->first : from <= last ? from : next;
    return true;
}

/* --- All of them ------------------------------------------------------------------------------------------------- */

/* What is done with the living frames of a span. */
typedef struct {
    void *context;
    uint64_t low, high; /* of these numbers */
    void (*even)(void *context, uint64_t first, uint64_t step, uint64_t count);
    void (*bits)(void *context, uint64_t first, uint64_t word); /* of 64 neighbours */
} visitor;

/* Even frames, those that are dead left out. */
static void visit_even(const sealed *t, const table_span *s, uint64_t count, const visitor *v) {
    uint64_t from = v->low <= s->first ? 0 : (v->low - s->first - 1) / s->step + 1;
    uint64_t end = v->high < s->first ? 0 : (v->high - s->first) / s->step + 1;
    end = end < count ? end : count;
    for (size_t i = sealed_dead_from(t, s->first + from * s->step); from < end;) {
        uint64_t dead = i < t->n_dead ? t->dead[i++] / 2 : UINT64_MAX; /* all of them were found in the table */
        uint64_t turn = (dead - s->first) / s->step;
        uint64_t stop = turn < end ? turn : end;
        if (from < stop) {
            v->even(v->context, s->first + from * s->step, s->step, stop - from);
        }
        from = stop + 1;
    }
}

static void visit_word(const sealed *t, uint64_t first, uint64_t word, const visitor *v) {
    if (word == 0 || first > v->high || first + 63 < v->low) {
        return;
    }
    for (size_t i = t->n_dead == 0 ? 0 : sealed_dead_from(t, first); i < t->n_dead && t->dead[i] / 2 - first < 64;
         i++) {
        word &= ~(UINT64_C(1) << (t->dead[i] / 2 - first));
    }
    if (first < v->low) {
        word &= ~UINT64_C(0) << (v->low - first);
    }
    if (v->high - first < 63) {
        word &= ~UINT64_C(0) >> (63 - (v->high - first));
    }
    v->bits(v->context, first, word);
}

static void visit_page(const sealed *t, const table_span *s, uint64_t count, const unsigned char *payload,
                       const visitor *v) {
    if ((s->page & SPAN_LIST) != 0) {
        for (uint64_t i = 0; i < count; i++) {
            visit_word(t, get64(payload + 8 * i), 1, v);
        }
    } else {
        for (uint64_t word = 0; word < LEAF_WORDS; word++) {
            visit_word(t, s->first + 64 * word, get64(payload + 8 * word), v);
        }
    }
}

/* False: torn. */
static bool visit(const sealed *t, int directory, const visitor *v, const bool *enough) {
    if (t->frames == 0 || t->high < v->low || t->low > v->high) {
        return true;
    }
    size_t i = span_of(t, v->low);
    size_t last = span_of(t, v->high);
    page_row row = {.t = t, .directory = directory, .fd = -1};
    for (size_t j = i; j <= last; j++) { /* pages are in the order of spans */
        row.end = t->spans[j].step == 0 ? (t->spans[j].page & ~SPAN_LIST) + 1 : row.end;
    }
    bool whole = true;
    for (; i <= last && whole && !(enough != NULL && *enough); i++) {
        const table_span *s = &t->spans[i];
        if (s->step > 0) {
            visit_even(t, s, sealed_count(t, i), v);
        } else {
            const unsigned char *payload = row_page(&row, s->page & ~SPAN_LIST);
            whole = payload != NULL;
            if (whole) {
                visit_page(t, s, sealed_count(t, i), payload, v);
            }
        }
    }
    row_close(&row);
    return whole;
}

typedef struct {
    const frame_selection *chosen;
    uint64_t *words;
} marking;

static void mark_number(const marking *m, uint64_t number) {
    uint64_t offset = number - m->chosen->low;
    uint64_t turn = m->chosen->step <= 1 ? offset : offset / m->chosen->step;
    if (turn * m->chosen->step == offset) {
        uint64_t bit = selection_bit(m->chosen, turn);
        m->words[bit / 64] |= UINT64_C(1) << bit % 64;
    }
}

static void mark_even(void *context, uint64_t first, uint64_t step, uint64_t count) {
    const marking *m = context;
    const frame_selection *chosen = m->chosen;
    if (step == 1 || count == 1) {
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

static void mark_bits(void *context, uint64_t first, uint64_t word) {
    const marking *m = context;
    if (m->chosen->step > 1 || m->chosen->backwards) {
        for (; word != 0; word &= word - 1) {
            mark_number(m, first + (uint64_t)__builtin_ctzll(word));
        }
        return;
    }
    if (first < m->chosen->low) {
        word >>= m->chosen->low - first;
        first = m->chosen->low;
    }
    uint64_t bit = first - m->chosen->low;
    m->words[bit / 64] |= word << bit % 64;
    if (bit % 64 != 0 && word >> (64 - bit % 64) != 0) {
        m->words[bit / 64 + 1] |= word >> (64 - bit % 64);
    }
}

// NOLINTNEXTLINE(readability-non-const-parameter): the visitor writes to them
bool sealed_mark(const sealed *t, int directory, const frame_selection *chosen, uint64_t *words) {
    marking m = {.chosen = chosen, .words = words};
    visitor v = {
        .context = &m, .low = chosen->low, .high = selection_last(chosen), .even = mark_even, .bits = mark_bits};
    return visit(t, directory, &v, NULL);
}

static void list_even(void *context, uint64_t first, uint64_t step, uint64_t count) {
    progressions_add(context, first, step, count);
}

static void list_bits(void *context, uint64_t first, uint64_t word) {
    for (; word != 0; word &= word - 1) {
        progressions_add(context, first + (uint64_t)__builtin_ctzll(word), 1, 1);
    }
}

bool sealed_list(const sealed *t, int directory, uint64_t low, uint64_t high, progressions *list) {
    visitor v = {.context = list, .low = low, .high = high, .even = list_even, .bits = list_bits};
    return visit(t, directory, &v, &list->exceeded);
}
