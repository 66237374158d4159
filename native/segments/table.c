/* The index in memory; see table.h. */
#include "segments/table.h"

#include <stdlib.h>
#include <string.h>

void table_free(table *t) {
    free(t->places);
    free(t->recent);
    memset(t, 0, sizeof *t);
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
    place *grown = realloc(t->places, capacity * sizeof *grown);
    if (grown == NULL) {
        return false;
    }
    t->places = grown;
    t->capacity = capacity;
    return true;
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

static bool flush_recent(table *t) {
    if (!reserve(t, t->n_recent)) {
        return false;
    }
    merge(t, t->recent, t->n_recent);
    t->n_recent = 0;
    return true;
}

/* First position in sorted `places` that is not below `number`. */
static size_t lower_bound(const place *places, size_t n, uint64_t number) {
    size_t low = 0;
    while (n > 0) {
        size_t half = n / 2;
        if (places[low + half].number < number) {
            low += half + 1;
            n -= half + 1;
        } else {
            n = half;
        }
    }
    return low;
}

static bool add_recent(table *t, const place *places, size_t n) {
    if (t->recent == NULL) {
        t->recent = malloc(TABLE_RECENT * sizeof *t->recent);
        if (t->recent == NULL) {
            return false;
        }
    }
    if (t->n_recent + n > TABLE_RECENT && !flush_recent(t)) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        size_t at = lower_bound(t->recent, t->n_recent, places[i].number);
        memmove(t->recent + at + 1, t->recent + at, (t->n_recent - at) * sizeof *t->recent);
        t->recent[at] = places[i];
        t->n_recent++;
    }
    return true;
}

bool table_add(table *t, place *places, size_t n) {
    if (n == 0) {
        return true;
    }
    if (!is_sorted(places, n)) {
        qsort(places, n, sizeof *places, by_number);
    }
    bool behind = t->count == 0 || places[0].number >= t->places[t->count - 1].number;
    if (!behind && n <= 16) {
        return add_recent(t, places, n);
    }
    if (!reserve(t, n)) {
        return false;
    }
    merge(t, places, n);
    return true;
}

place *table_find(const table *t, uint64_t number, size_t *state) {
    size_t copy = 0;
    for (size_t i = lower_bound(t->places, t->count, number); i < t->count && t->places[i].number == number; i++) {
        if (copy++ >= *state && !t->places[i].dead) {
            *state = copy;
            return t->places + i;
        }
    }
    for (size_t i = lower_bound(t->recent, t->n_recent, number); i < t->n_recent && t->recent[i].number == number;
         i++) {
        if (copy++ >= *state && !t->recent[i].dead) {
            *state = copy;
            return t->recent + i;
        }
    }
    *state = copy;
    return NULL;
}

size_t table_living(const table *t) {
    uint64_t numbers[512];
    size_t total = 0;
    size_t n = table_numbers(t, 0, numbers, 512);
    while (n > 0) {
        total += n;
        n = table_numbers(t, numbers[n - 1] + 1, numbers, 512);
    }
    return total;
}

size_t table_numbers(const table *t, uint64_t from, uint64_t *numbers, size_t capacity) {
    size_t i = lower_bound(t->places, t->count, from);
    size_t j = lower_bound(t->recent, t->n_recent, from);
    size_t n = 0;
    while (n < capacity && (i < t->count || j < t->n_recent)) {
        bool first = j == t->n_recent || (i < t->count && t->places[i].number <= t->recent[j].number);
        const place *next = first ? &t->places[i++] : &t->recent[j++];
        if (!next->dead && (n == 0 || numbers[n - 1] != next->number)) {
            numbers[n++] = next->number;
        }
    }
    return n;
}

void table_forget_segment(table *t, uint32_t segment) {
    for (size_t i = 0; i < t->count; i++) {
        t->places[i].dead = t->places[i].dead || t->places[i].segment == segment;
    }
    for (size_t i = 0; i < t->n_recent; i++) {
        t->recent[i].dead = t->recent[i].dead || t->recent[i].segment == segment;
    }
}

size_t table_memory(const table *t) {
    return t->capacity * sizeof *t->places + (t->recent == NULL ? 0 : TABLE_RECENT * sizeof *t->recent);
}
