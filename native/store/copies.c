/* The copies of frames that a dataset knows, in its table and in what was sealed. The caller holds the mutex of all
 * that follows. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "store/dataset.h"

enum { WINDOW_WORDS = 512 /* that are marked at once */ };

/* --- What was sealed --------------------------------------------------------------------------------------------- */

/* NULL: it was closed. */
static sealed *of_range(const bodhi_dataset *dataset, unsigned kind, size_t i) {
    return dataset->segments[dataset->ranges[kind][i].ordinal]->sealed;
}

bool dataset_add_sealed(bodhi_dataset *dataset, uint32_t ordinal) {
    const segment *s = dataset->segments[ordinal];
    size_t n = dataset->n_ranges[s->kind];
    for (size_t i = 0; i < n; i++) {
        sealed_range *known = &dataset->ranges[s->kind][i];
        if (known->ordinal == ordinal) {
            known->low = s->sealed->low;
            known->high = s->sealed->high;
            return true;
        }
    }
    if (!ARRAY_GROW(dataset->ranges[s->kind], dataset->range_capacity[s->kind], n + 1)) {
        return false;
    }
    dataset->ranges[s->kind][n] = (sealed_range){.low = s->sealed->low, .high = s->sealed->high, .ordinal = ordinal};
    dataset->n_ranges[s->kind] = n + 1;
    return true;
}

void dataset_remove_sealed(bodhi_dataset *dataset, uint32_t ordinal) {
    segment *s = dataset->segments[ordinal];
    for (size_t i = 0; s->sealed != NULL && i < dataset->n_ranges[s->kind]; i++) {
        sealed_range *range = &dataset->ranges[s->kind][i];
        if (range->ordinal == ordinal) { /* it stays in its place, of no frames: cursors point behind it */
            range->low = UINT64_MAX;
            range->high = 0;
        }
    }
    sealed_close(s->sealed);
    s->sealed = NULL;
}

/* A page of a segment's sealed table cannot be read: it is not used any more. */
static void tear(bodhi_dataset *dataset, uint32_t ordinal) {
    segment *s = dataset->segments[ordinal];
    s->torn = s->sealed->stamp;
    dataset->torn = true;
}

/* Read everything anew without what is torn. Which segments there are is the catalog's, which calls what is here. */
static void mend(bodhi_dataset *dataset) {
    if (dataset->torn) {
        dataset->mend(dataset);
    }
}

/* --- Copies ------------------------------------------------------------------------------------------------------ */

/* The next copy among what was sealed. */
static enum sealed_answer next_sealed(bodhi_dataset *dataset, unsigned kind, uint64_t number, copy_cursor *at,
                                      place *copy) {
    for (; at->range < dataset->n_ranges[kind]; at->range++) {
        const sealed_range *range = &dataset->ranges[kind][at->range];
        if (number < range->low || number > range->high) {
            continue;
        }
        enum sealed_answer answer = sealed_find(of_range(dataset, kind, at->range), dataset->fd, number, copy);
        if (answer == SEALED_TORN) {
            tear(dataset, range->ordinal);
            return answer;
        }
        if (answer == SEALED_FOUND) {
            at->range++;
            return answer;
        }
    }
    return SEALED_ABSENT;
}

bool dataset_next_copy(bodhi_dataset *dataset, unsigned kind, uint64_t number, copy_cursor *at, place *copy) {
    for (;;) {
        const place *found = table_find(&dataset->tables[kind], number, &at->in_table);
        if (found != NULL) {
            *copy = *found;
            return true;
        }
        enum sealed_answer answer = next_sealed(dataset, kind, number, at, copy);
        if (answer != SEALED_TORN) {
            return answer == SEALED_FOUND;
        }
        mend(dataset);
        *at = (copy_cursor){0};
    }
}

/* The copy where the last one was found: frames that are asked for together lie together. */
static bool find_near(bodhi_dataset *dataset, unsigned kind, uint64_t number, place *copy) {
    size_t hint = dataset->hint[kind];
    if (hint >= dataset->n_ranges[kind] || number < dataset->ranges[kind][hint].low ||
        number > dataset->ranges[kind][hint].high) {
        return false;
    }
    return sealed_find(of_range(dataset, kind, hint), dataset->fd, number, copy) == SEALED_FOUND;
}

int dataset_choose_copy(bodhi_dataset *dataset, uint64_t number, place *copy) {
    for (unsigned kind = BODHI_NATIVE; kind <= BODHI_ALIEN; kind++) {
        copy_cursor at = {0};
        if (find_near(dataset, kind, number, copy)) {
            return (int)kind;
        }
        if (dataset_next_copy(dataset, kind, number, &at, copy)) {
            dataset->hint[kind] = at.range > 0 ? at.range - 1 : 0;
            return (int)kind;
        }
    }
    return -1;
}

enum sealed_answer dataset_kill(bodhi_dataset *dataset, unsigned kind, const place *copy, bool passed_over) {
    segment *s = dataset->segments[copy->segment];
    size_t state = 0;
    place *found;
    while ((found = table_find(&dataset->tables[kind], copy->number, &state)) != NULL) {
        if (found->segment == copy->segment && found->offset == copy->offset) {
            found->dead = passed_over ? PLACE_PASSED_OVER : PLACE_DROPPED;
            s->live--;
            return SEALED_FOUND;
        }
    }
    place there;
    enum sealed_answer answer =
        s->sealed == NULL ? SEALED_ABSENT : sealed_find(s->sealed, dataset->fd, copy->number, &there);
    if (answer == SEALED_TORN) {
        tear(dataset, copy->segment);
    }
    if (answer != SEALED_FOUND || there.offset != copy->offset) {
        return answer == SEALED_FOUND ? SEALED_ABSENT : answer;
    }
    s->live -= sealed_kill(s->sealed, copy->number, passed_over); /* else it stays a while */
    return SEALED_FOUND;
}

void dataset_pass_over(bodhi_dataset *dataset, unsigned kind, const place *copy) {
    if (dataset_kill(dataset, kind, copy, true) == SEALED_TORN) {
        mend(dataset);
        (void)dataset_kill(dataset, kind, copy, true);
    }
}

/* --- All of them ------------------------------------------------------------------------------------------------- */

void dataset_mark(bodhi_dataset *dataset, unsigned kind, const frame_selection *chosen, uint64_t *words) {
    bool whole;
    do {
        whole = true;
        table_mark(&dataset->tables[kind], chosen, words);
        for (size_t i = 0; i < dataset->n_ranges[kind] && whole; i++) {
            const sealed *t = of_range(dataset, kind, i);
            whole = t == NULL || sealed_mark(t, dataset->fd, chosen, words);
            if (!whole) {
                tear(dataset, dataset->ranges[kind][i].ordinal);
            }
        }
        mend(dataset);
    } while (!whole);
}

/* The lowest number from `from` on at which there may be a frame; false: there is none. */
static bool next_number(const bodhi_dataset *dataset, unsigned kind, uint64_t from, uint64_t *number) {
    uint64_t first;
    bool any = table_numbers(&dataset->tables[kind], from, &first, 1) == 1;
    *number = any ? first : UINT64_MAX;
    for (size_t i = 0; i < dataset->n_ranges[kind]; i++) {
        const sealed *t = of_range(dataset, kind, i);
        uint64_t next;
        if (t != NULL && sealed_next(t, from, &next) && (!any || next < *number)) {
            *number = next;
            any = true;
        }
    }
    return any;
}

/* Mark the frames of the next window in which there may be some, from window->low on; false: there is none. */
static bool mark_window(bodhi_dataset *dataset, unsigned kind, frame_selection *window, uint64_t words[WINDOW_WORDS]) {
    uint64_t first;
    if (!next_number(dataset, kind, window->low, &first)) {
        return false;
    }
    *window = (frame_selection){.low = first, .step = 1, .count = (uint64_t)WINDOW_WORDS * 64};
    memset(words, 0, WINDOW_WORDS * sizeof *words);
    dataset_mark(dataset, kind, window, words);
    return true;
}

size_t dataset_numbers(bodhi_dataset *dataset, unsigned kind, uint64_t from, uint64_t *numbers, size_t capacity) {
    if (dataset->n_ranges[kind] == 0) {
        return table_numbers(&dataset->tables[kind], from, numbers, capacity);
    }
    uint64_t words[WINDOW_WORDS];
    size_t n = 0;
    for (frame_selection window = {.low = from}; n < capacity && mark_window(dataset, kind, &window, words);
         window.low += window.count) {
        for (uint64_t word = 0; word < WINDOW_WORDS; word++) {
            for (uint64_t left = words[word]; left != 0 && n < capacity; left &= left - 1) {
                numbers[n++] = window.low + 64 * word + (uint64_t)__builtin_ctzll(left);
            }
        }
    }
    return n;
}

bool dataset_is_vacant(const bodhi_dataset *dataset, unsigned kind) {
    uint64_t first;
    bool vacant = table_numbers(&dataset->tables[kind], 0, &first, 1) == 0;
    for (size_t i = 0; i < dataset->n_ranges[kind] && vacant; i++) {
        const sealed *t = of_range(dataset, kind, i);
        vacant = t == NULL || sealed_living(t) == 0;
    }
    return vacant;
}

static int by_low(const void *left, const void *right) {
    const sealed_range *a = left;
    const sealed_range *b = right;
    return a->low < b->low ? -1 : a->low > b->low;
}

/* Whether no two of the sealed tables can have a frame in common. */
static bool are_apart(const bodhi_dataset *dataset, unsigned kind) {
    size_t n = dataset->n_ranges[kind];
    sealed_range *sorted = malloc((n + 1) * sizeof *sorted);
    if (sorted == NULL) {
        return false;
    }
    if (n > 0) {
        memcpy(sorted, dataset->ranges[kind], n * sizeof *sorted);
        qsort(sorted, n, sizeof *sorted, by_low);
    }
    bool apart = true;
    for (size_t i = 1; i < n && apart; i++) {
        apart = sorted[i - 1].high < sorted[i].low;
    }
    free(sorted);
    return apart;
}

uint64_t dataset_living(bodhi_dataset *dataset, unsigned kind) {
    uint64_t living = table_living(&dataset->tables[kind]);
    if (dataset->n_ranges[kind] == 0) {
        return living;
    }
    if (living == 0 && are_apart(dataset, kind)) {
        for (size_t i = 0; i < dataset->n_ranges[kind]; i++) {
            const sealed *t = of_range(dataset, kind, i);
            living += t == NULL ? 0 : sealed_living(t);
        }
        return living;
    }
    uint64_t words[WINDOW_WORDS];
    living = 0;
    for (frame_selection window = {.low = 0}; mark_window(dataset, kind, &window, words); window.low += window.count) {
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

int64_t dataset_runs(bodhi_dataset *dataset, unsigned kind, uint64_t low, uint64_t high, bodhi_run *runs,
                     int64_t capacity) {
    uint64_t words[WINDOW_WORDS];
    int64_t n = 0;
    for (frame_selection window = {.low = low}; mark_window(dataset, kind, &window, words);
         window.low += window.count) {
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
