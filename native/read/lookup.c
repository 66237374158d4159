/* Frames looked up in a dataset's own table; see locator.h. */
#include <stdlib.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/status.h"
#include "read/locator.h"

typedef struct {
    locator head;
    bodhi_dataset *dataset;
    segment_key *keys;
    size_t n_keys, key_capacity;
} lookup;

static lookup *lookup_of(locator *l) {
    return (lookup *)(void *)l;
}

bool exceeds_memory(uint64_t bytes) {
    long pages = sysconf(_SC_PHYS_PAGES);
    long page = sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 && bytes > (uint64_t)pages * (uint64_t)page / 2;
}

/* The caller holds the dataset's mutex. */
static void choose(const lookup *l, target *w) {
    w->kind = -1;
    w->reason = BODHI_REASON_ABSENT;
    if (w->place.number <= INT64_MAX) {
        w->kind = (int8_t)dataset_choose_copy(l->dataset, w->place.number, &w->place);
    }
    if (w->kind >= 0 && w->place.segment >= l->n_keys) {
        w->kind = -1; /* in a segment younger than this reader */
    }
}

static int locate(locator *head, target *list, size_t n, size_t *count) {
    lookup *l = lookup_of(head);
    bodhi_dataset *dataset = l->dataset;
    pthread_mutex_lock(&dataset->mutex);
    if (!ARRAY_GROW(l->keys, l->key_capacity, dataset->n_segments)) {
        pthread_mutex_unlock(&dataset->mutex);
        return bodhi_fail_memory();
    }
    l->head.keys = l->keys;
    l->n_keys = dataset->n_segments;
    for (size_t i = 0; i < l->n_keys; i++) {
        l->keys[i] = dataset->segments[i]->key;
    }
    for (size_t i = 0; i < n; i++) {
        choose(l, &list[i]);
    }
    pthread_mutex_unlock(&dataset->mutex);
    *count = n;
    return BODHI_OK;
}

static int pin(locator *head, uint32_t ordinal, bool direct) {
    return dataset_pin(lookup_of(head)->dataset, ordinal, direct);
}

static void unpin(locator *head, uint32_t ordinal) {
    dataset_unpin(lookup_of(head)->dataset, ordinal);
}

/* Nobody in this process reads the copy from now on. */
static void pass_over(locator *head, target *w) {
    const lookup *l = lookup_of(head);
    pthread_mutex_lock(&l->dataset->mutex);
    dataset_pass_over(l->dataset, (unsigned)w->kind, &w->place);
    choose(l, w);
    pthread_mutex_unlock(&l->dataset->mutex);
}

static void close_lookup(locator *head) {
    lookup *l = lookup_of(head);
    dataset_remove_reader(l->dataset);
    free(l->keys);
    free(l);
}

locator *lookup_open(bodhi_dataset *dataset) {
    lookup *l = calloc(1, sizeof *l);
    uint64_t bytes = 0;
    if (l == NULL) {
        return NULL;
    }
    pthread_mutex_lock(&dataset->mutex);
    for (size_t i = 0; i < dataset->n_segments; i++) {
        bytes += dataset->segments[i]->gone ? 0 : dataset->segments[i]->covered;
    }
    dataset->readers++;
    pthread_mutex_unlock(&dataset->mutex);
    l->dataset = dataset;
    l->head = (locator){.locate = locate,
                        .pin = pin,
                        .unpin = unpin,
                        .pass_over = pass_over,
                        .close = close_lookup,
                        .exceeds_memory = exceeds_memory(bytes)};
    return &l->head;
}
