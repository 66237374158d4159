/* The copies of frames that a dataset knows, in its table and in what was sealed. The caller holds the mutex of all
 * that follows. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "store/dataset.h"

enum { WINDOW_WORDS = 512 /* that are marked at once */ };

/* The sealed table of segment `i` if it is of this kind and may have frames between `low` and `high`; else NULL. */
static sealed *table_between(const bodhi_dataset *dataset, unsigned kind, size_t i, uint64_t low, uint64_t high) {
    const segment *s = dataset->segments[i];
    return s->kind == kind && s->sealed != NULL && s->sealed->blocks->first <= high && s->sealed->facts.high >= low
               ? s->sealed
               : NULL;
}

void dataset_set_sealed(bodhi_dataset *dataset, segment *s, sealed *t) {
    sealed_close(s->sealed);
    s->sealed = t;
    if (t != NULL) {
        t->any_torn = &dataset->torn;
    }
}

/* Where a sealed table was found torn, read everything anew without it. False: none was. Which segments there are is
 * the catalog's, which calls what is here. */
static bool mended(bodhi_dataset *dataset) {
    bool torn = dataset->torn;
    if (torn) {
        dataset->mend(dataset);
    }
    return torn;
}

static const place *next_copy(bodhi_dataset *dataset, unsigned kind, uint64_t number, copy_cursor *at) {
    const place *copy;
    while ((copy = table_find(&dataset->tables[kind], number, &at->in_table)) != NULL) {
        if (!copy->dead) {
            return copy;
        }
    }
    while (at->segment < dataset->n_segments) {
        sealed *t = table_between(dataset, kind, at->segment++, number, number);
        copy = t == NULL ? NULL : sealed_find(t, dataset->fd, number);
        if (copy != NULL && !copy->dead) {
            return copy;
        }
    }
    return NULL;
}

bool dataset_next_copy(bodhi_dataset *dataset, unsigned kind, uint64_t number, copy_cursor *at, place *copy) {
    const place *next = next_copy(dataset, kind, number, at);
    while (mended(dataset)) {
        *at = (copy_cursor){0};
        next = next_copy(dataset, kind, number, at);
    }
    if (next != NULL) {
        *copy = *next;
    }
    return next != NULL;
}

int dataset_choose_copy(bodhi_dataset *dataset, uint64_t number, place *copy) {
    for (unsigned kind = BODHI_NATIVE; kind <= BODHI_ALIEN; kind++) {
        /* First where the last one was found: frames that are asked for together lie together. */
        size_t hint = dataset->hint[kind];
        sealed *t = hint < dataset->n_segments ? table_between(dataset, kind, hint, number, number) : NULL;
        const place *near = t == NULL ? NULL : sealed_find(t, dataset->fd, number);
        copy_cursor at = {0};
        if (near != NULL && !near->dead) {
            *copy = *near;
            return (int)kind;
        }
        if (dataset_next_copy(dataset, kind, number, &at, copy)) {
            dataset->hint[kind] = copy->segment;
            return (int)kind;
        }
    }
    return -1;
}

/* The copy in memory at a place; NULL: there is none. */
static place *copy_in_memory(const bodhi_dataset *dataset, unsigned kind, const place *copy) {
    size_t state = 0;
    place *known;
    do {
        known = table_find(&dataset->tables[kind], copy->number, &state);
    } while (known != NULL && (known->segment != copy->segment || known->offset != copy->offset));
    return known;
}

static const place *copy_in_file(bodhi_dataset *dataset, const place *copy) {
    sealed *t = dataset->segments[copy->segment]->sealed;
    const place *known = t == NULL ? NULL : sealed_find(t, dataset->fd, copy->number);
    return known != NULL && known->offset == copy->offset ? known : NULL;
}

bool dataset_is_dead(bodhi_dataset *dataset, unsigned kind, const place *copy) {
    const place *known = copy_in_memory(dataset, kind, copy);
    known = known == NULL ? copy_in_file(dataset, copy) : known;
    return known != NULL && known->dead;
}

bool dataset_kill(bodhi_dataset *dataset, unsigned kind, const place *copy) {
    segment *s = dataset->segments[copy->segment];
    place *known = copy_in_memory(dataset, kind, copy);
    const place *there = known == NULL ? copy_in_file(dataset, copy) : known;
    if (there == NULL || there->dead) {
        return false;
    }
    if (known != NULL) {
        known->dead = true;
    } else if (!sealed_kill(s->sealed, copy->number)) {
        return true; /* it stays a while */
    }
    s->live--;
    return true;
}

void dataset_pass_over(bodhi_dataset *dataset, unsigned kind, const place *copy) {
    do {
        (void)dataset_kill(dataset, kind, copy);
    } while (mended(dataset));
}

void dataset_mark(bodhi_dataset *dataset, unsigned kind, const frame_selection *chosen, uint64_t *words) {
    do {
        table_mark(&dataset->tables[kind], chosen, words);
        for (size_t i = 0; i < dataset->n_segments; i++) {
            sealed *t = table_between(dataset, kind, i, chosen->low, selection_last(chosen));
            if (t != NULL) {
                sealed_mark(t, dataset->fd, chosen, words);
            }
        }
    } while (mended(dataset));
}

/* The lowest number from `from` on at which there is a frame, living or not; false: there is none. */
static bool next_number(bodhi_dataset *dataset, unsigned kind, uint64_t from, uint64_t *number) {
    do {
        (void)table_next(&dataset->tables[kind], from, number);
        for (size_t i = 0; i < dataset->n_segments; i++) {
            sealed *t = table_between(dataset, kind, i, from, *number);
            uint64_t low = t == NULL ? 0 : t->blocks->first; /* for which no block is read */
            const place *next = t == NULL || low >= from ? NULL : sealed_next(t, dataset->fd, from);
            uint64_t here = next != NULL ? next->number : t != NULL && low >= from ? low : UINT64_MAX;
            *number = here < *number ? here : *number;
        }
    } while (mended(dataset));
    return *number != UINT64_MAX;
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
    bool vacant = !table_next(&dataset->tables[kind], 0, &first);
    for (size_t i = 0; i < dataset->n_segments && vacant; i++) {
        const sealed *t = table_between(dataset, kind, i, 0, UINT64_MAX);
        vacant = t == NULL || sealed_living(t) == 0;
    }
    return vacant;
}

uint64_t dataset_living(bodhi_dataset *dataset, unsigned kind) {
    uint64_t words[WINDOW_WORDS];
    uint64_t living = 0;
    for (frame_selection window = {.low = 0}; mark_window(dataset, kind, &window, words); window.low += window.count) {
        for (size_t i = 0; i < WINDOW_WORDS; i++) {
            living += (uint64_t)__builtin_popcountll(words[i]);
        }
    }
    return living;
}

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
