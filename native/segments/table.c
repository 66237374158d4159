/* The index in memory; see table.h. */
#include "segments/table.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/memory.h"

enum { WINDOW_WORDS = 512, IN_MEMORY = 1 /* list, before the runs */ };

void table_free(table *t) {
    free(t->places);
    for (size_t i = 0; i < t->n_runs; i++) {
        run_close(&t->runs[i]);
    }
    free(t->runs);
    memset(t, 0, sizeof *t);
}

void run_close(sealed_run *run) {
    if (run->mapping != NULL) {
        (void)munmap(run->mapping, run->bytes);
    }
    run->mapping = NULL;
    run->n = run->n_dead = 0;
}

static int by_number(const void *a, const void *b) {
    const place *left = a;
    const place *right = b;
    return left->number < right->number ? -1 : left->number > right->number;
}

static bool is_sorted(const place *places, size_t n) {
    for (size_t i = 1; i < n; i++) {
        if (places[i].number < places[i - 1].number) {
            return false;
        }
    }
    return true;
}

/* Room for `n` more. Small tables double; large ones grow by an eighth, so that memory stays near 24 bytes a frame. */
static bool reserve(table *t, size_t n) {
    if (t->count + n <= t->capacity) {
        return true;
    }
    size_t slack = t->count < 65536 ? t->count : t->count / 8;
    size_t capacity = t->count + n > t->count + slack ? t->count + n : t->count + slack;
    return ARRAY_FIT(t->places, t->capacity, capacity);
}

/* Merge `n` sorted places from the back; room is there. */
static void merge(table *t, const place *places, size_t n) {
    size_t left = t->count;
    t->count += n;
    for (size_t at = t->count; n > 0; at--) {
        // NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): the first `left` places are set
        if (left > 0 && t->places[left - 1].number > places[n - 1].number) {
            t->places[at - 1] = t->places[--left];
        } else {
            t->places[at - 1] = places[--n];
        }
    }
}

/* First position in sorted `places` that is not below `number`. */
static size_t lower_bound(const place *places, size_t n, uint64_t number) {
    size_t low;
    ARRAY_SEARCH(low, n, i, places[i].number < number);
    return low;
}

bool table_add(table *t, place *places, size_t n) {
    if (n == 0) {
        return true;
    }
    if (!is_sorted(places, n)) {
        qsort(places, n, sizeof *places, by_number);
    }
    if (!reserve(t, n)) {
        return false;
    }
    merge(t, places, n);
    return true;
}

bool table_add_run(table *t, const sealed_run *run) {
    for (size_t i = 0; i < t->n_runs; i++) {
        if (t->runs[i].segment == run->segment) {
            run_close(&t->runs[i]);
            t->runs[i] = *run;
            return true;
        }
    }
    if (!ARRAY_GROW(t->runs, t->run_capacity, t->n_runs + 1)) {
        return false;
    }
    t->runs[t->n_runs++] = *run;
    return true;
}

/* One of the sorted lists of a table as a run: its places in memory, and what was sealed. */
static sealed_run list_of(const table *t, size_t i) {
    return i == 0 ? (sealed_run){.places = t->places, .n = t->count} : t->runs[i - IN_MEMORY];
}

/* The first place of a list that is not below `number`. */
static size_t first_from(const sealed_run *list, uint64_t number) {
    if (list->n == 0 || number <= list->places[0].number) {
        return 0;
    }
    if (number > list->places[list->n - 1].number) {
        return list->n;
    }
    return list->step > 0 ? (number - list->places[0].number + list->step - 1) / list->step
                          : lower_bound(list->places, list->n, number);
}

/* As table_next_copy(): where it is. */
static place *next_copy(const table *t, uint64_t number, copy_cursor *at) {
    for (; at->run < IN_MEMORY + t->n_runs; at->run++, at->copy = 0) {
        const sealed_run list = list_of(t, at->run);
        for (size_t i = first_from(&list, number) + at->copy; i < list.n && list.places[i].number == number; i++) {
            at->copy++;
            if (list.places[i].dead == PLACE_LIVING) {
                return &list.places[i];
            }
        }
    }
    return NULL;
}

static uint32_t segment_of(const table *t, const place *copy, size_t list) {
    return list < IN_MEMORY ? copy->segment : t->runs[list - IN_MEMORY].segment;
}

bool table_next_copy(const table *t, uint64_t number, copy_cursor *at, place *copy) {
    const place *next = next_copy(t, number, at);
    if (next != NULL) {
        *copy = *next;
        copy->segment = segment_of(t, next, at->run);
    }
    return next != NULL;
}

bool table_kill(table *t, const place *copy, enum place_state state) {
    copy_cursor at = {0};
    place *next;
    while ((next = next_copy(t, copy->number, &at)) != NULL) {
        if (next->offset == copy->offset && segment_of(t, next, at.run) == copy->segment) {
            next->dead = (uint8_t)state;
            if (at.run >= IN_MEMORY) {
                t->runs[at.run - IN_MEMORY].n_dead++;
            }
            return true;
        }
    }
    return false;
}

void table_forget_segment(table *t, uint32_t segment) {
    for (size_t i = 0; i < t->count; i++) {
        t->places[i].dead = t->places[i].segment == segment ? PLACE_DROPPED : t->places[i].dead;
    }
    for (size_t i = 0; i < t->n_runs; i++) {
        if (t->runs[i].segment == segment) {
            run_close(&t->runs[i]); /* it stays in its place: cursors point behind it */
        }
    }
}

void table_remove(table *t, uint32_t segment) {
    size_t kept = 0;
    for (size_t i = 0; i < t->count; i++) {
        t->places[kept] = t->places[i];
        kept += t->places[i].segment != segment;
    }
    t->count = kept;
    size_t capacity = t->count < 1024 ? 1024 : t->count;
    place *shrunk = t->capacity <= capacity ? NULL : realloc(t->places, capacity * sizeof *shrunk);
    if (shrunk != NULL) {
        t->places = shrunk;
        t->capacity = capacity;
    }
}

/* --- Sealing ----------------------------------------------------------------------------------------------------- */

static int by_number_and_offset(const void *left, const void *right) {
    const place *a = left;
    const place *b = right;
    return a->number != b->number ? by_number(a, b) : a->offset < b->offset ? -1 : a->offset > b->offset;
}

place *table_collect(const table *t, uint32_t segment, size_t *n) {
    place *places = NULL;
    size_t capacity = 0;
    size_t all = 0;
    for (size_t i = 0; i < IN_MEMORY + t->n_runs; i++) {
        const sealed_run list = list_of(t, i);
        for (size_t k = 0; k < list.n && (i < IN_MEMORY || list.segment == segment); k++) {
            place copy = list.places[k];
            if (copy.dead == PLACE_DROPPED || segment_of(t, &copy, i) != segment) {
                continue;
            }
            if (copy.dead == PLACE_PASSED_OVER || !ARRAY_GROW(places, capacity, all + 1)) {
                free(places);
                return NULL;
            }
            copy.segment = 0;
            places[all++] = copy;
        }
    }
    if (all > 0) {
        qsort(places, all, sizeof *places, by_number_and_offset);
    }
    *n = 0;
    for (size_t i = 0; i < all; i++) { /* the later of two was written because the earlier had been lost */
        *n -= *n > 0 && places[*n - 1].number == places[i].number;
        places[(*n)++] = places[i];
    }
    return places;
}

uint64_t even_step(const place *places, size_t n) {
    uint64_t step = n > 1 ? places[1].number - places[0].number : 1;
    for (size_t i = 1; i < n && step > 0; i++) {
        step = places[i].number - places[i - 1].number == step ? step : 0;
    }
    return step;
}

/* --- Bits -------------------------------------------------------------------------------------------------------- */

/* The first place from `at` on that is not below `number`: sought in strides that double, because it is near. */
static size_t skip_to(const place *places, size_t n, size_t at, uint64_t number) {
    size_t stride = 1;
    while (at < n && stride < n - at && places[at + stride].number < number) {
        at += stride;
        stride *= 2;
    }
    size_t end = stride < n - at ? at + stride : n;
    return at < end ? at + lower_bound(places + at, end - at, number) : at;
}

/* Set the bits of living places. `step` is the selection's; the compiler makes a loop of its own where it is 1. */
static inline void mark_places(const place *places, size_t n, const frame_selection *chosen, uint64_t step,
                               uint64_t *words) {
    uint64_t word = 0;
    uint64_t bits = 0; /* of that word: neighbours are written at once */
    size_t i = skip_to(places, n, 0, chosen->low);
    while (i < n) {
        uint64_t offset = places[i].number - chosen->low;
        uint64_t turn = (offset + (step - 1)) / step;
        if (turn >= chosen->count) {
            break;
        }
        if (turn * step != offset) {
            i = skip_to(places, n, i + 1, chosen->low + turn * step);
            continue;
        }
        uint64_t position = selection_bit(chosen, turn);
        if (position / 64 != word) {
            words[word] |= bits;
            word = position / 64;
            bits = 0;
        }
        bits |= (uint64_t)(places[i].dead == PLACE_LIVING) << (position % 64);
        i++;
    }
    words[word] |= bits;
}

/* The same of all numbers between the first and the last of a run. */
static void mark_stretch(const sealed_run *run, const frame_selection *chosen, uint64_t *words) {
    uint64_t from = selection_turn(chosen, run->places[0].number);
    uint64_t to = selection_turn(chosen, run->places[run->n - 1].number + 1);
    to = to < chosen->count ? to : chosen->count;
    if (from < to && chosen->backwards) {
        words_set(words, chosen->count - to, chosen->count - from);
    } else {
        words_set(words, from, to);
    }
}

void table_mark(const table *t, const frame_selection *chosen, uint64_t *words) {
    for (size_t i = 0; i < IN_MEMORY + t->n_runs; i++) {
        const sealed_run list = list_of(t, i);
        if (list.n > 0 && list.step == 1 && list.n_dead == 0) {
            mark_stretch(&list, chosen, words);
        } else if (chosen->step == 1) {
            mark_places(list.places, list.n, chosen, 1, words);
        } else {
            mark_places(list.places, list.n, chosen, chosen->step, words);
        }
    }
}

/* Mark the frames of the next window in which there may be some, from window->low on; false: there is none. */
static bool mark_window(const table *t, frame_selection *window, uint64_t words[WINDOW_WORDS]) {
    uint64_t first = UINT64_MAX;
    for (size_t i = 0; i < IN_MEMORY + t->n_runs; i++) {
        const sealed_run list = list_of(t, i);
        size_t at = first_from(&list, window->low);
        first = at < list.n && list.places[at].number < first ? list.places[at].number : first;
    }
    *window = (frame_selection){.low = first, .step = 1, .count = (uint64_t)WINDOW_WORDS * 64};
    memset(words, 0, WINDOW_WORDS * sizeof *words);
    if (first < UINT64_MAX) {
        table_mark(t, window, words);
    }
    return first < UINT64_MAX;
}

size_t table_numbers(const table *t, uint64_t from, uint64_t *numbers, size_t capacity) {
    uint64_t words[WINDOW_WORDS];
    size_t n = 0;
    for (frame_selection window = {.low = from}; n < capacity && mark_window(t, &window, words);
         window.low += window.count) {
        for (uint64_t word = 0; word < WINDOW_WORDS; word++) {
            for (uint64_t left = words[word]; left != 0 && n < capacity; left &= left - 1) {
                numbers[n++] = window.low + 64 * word + (uint64_t)__builtin_ctzll(left);
            }
        }
    }
    return n;
}

uint64_t table_living(const table *t) {
    uint64_t words[WINDOW_WORDS];
    uint64_t living = 0;
    for (frame_selection window = {.low = 0}; mark_window(t, &window, words); window.low += window.count) {
        for (size_t i = 0; i < WINDOW_WORDS; i++) {
            living += (uint64_t)__builtin_popcountll(words[i]);
        }
    }
    return living;
}

/* --- Runs -------------------------------------------------------------------------------------------------------- */

/* Add `count` numbers that follow one another. False: there is no room. */
static bool add_numbers(bodhi_run *runs, int64_t capacity, int64_t *n, int64_t number, int64_t count) {
    bodhi_run *last = *n == 0 ? NULL : &runs[*n - 1];
    if (last != NULL && last->count == 1 && count == 1) {
        last->step = number - last->first;
    }
    if (last != NULL && number == last->first + last->step * last->count && (count == 1 || last->step == 1)) {
        last->count += count;
    } else if (*n < capacity) {
        runs[(*n)++] = (bodhi_run){.first = number, .step = 1, .count = count};
    } else {
        return false;
    }
    return true;
}

int64_t table_runs(const table *t, uint64_t low, uint64_t high, bodhi_run *runs, int64_t capacity) {
    uint64_t words[WINDOW_WORDS];
    int64_t n = 0;
    for (frame_selection window = {.low = low}; mark_window(t, &window, words); window.low += window.count) {
        for (uint64_t word = 0; word < WINDOW_WORDS; word++) {
            uint64_t number = window.low + 64 * word;
            bool all = words[word] == UINT64_MAX && high - number >= 63;
            for (uint64_t left = words[word]; left != 0; left = all ? 0 : left & (left - 1)) {
                uint64_t next = number + (uint64_t)__builtin_ctzll(left);
                if (next > high) {
                    return n;
                }
                if (!add_numbers(runs, capacity, &n, (int64_t)next, all ? 64 : 1)) {
                    return -1;
                }
            }
        }
    }
    return n;
}

size_t table_memory(const table *t) {
    return t->capacity * sizeof *t->places;
}
