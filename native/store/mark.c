/* Which frames of a selection a dataset holds, as bits: the words that nodes exchange to find out who reads what. */
#include "base/status.h"
#include "store/dataset.h"

/* Frames low, low + step, ...; bit 0 is the first of them, or the last if the selection goes backwards. */
typedef struct {
    uint64_t low, step, count;
    bool backwards;
} selection;

/* The first of `n` sorted places, from `at` on, that is not below `number`: sought in strides that double, because it
 * is near where places lie as close as what is selected. */
static size_t skip_to(const place *places, size_t n, size_t at, uint64_t number) {
    size_t stride = 1;
    while (at < n && stride < n - at && places[at + stride].number < number) {
        at += stride;
        stride *= 2;
    }
    size_t end = stride < n - at ? at + stride : n;
    while (at < end) {
        size_t middle = at + (end - at) / 2;
        if (places[middle].number < number) {
            at = middle + 1;
        } else {
            end = middle;
        }
    }
    return at;
}

/* Set the bits of living places. `step` is the selection's; the compiler makes a loop of its own where it is 1. */
static inline void mark_places(const place *places, size_t n, selection chosen, uint64_t step, uint64_t *words) {
    uint64_t word = 0;
    uint64_t bits = 0; /* of that word: neighbours are written at once */
    size_t i = skip_to(places, n, 0, chosen.low);
    while (i < n) {
        uint64_t offset = places[i].number - chosen.low;
        uint64_t turn = (offset + (step - 1)) / step;
        if (turn >= chosen.count) {
            break;
        }
        if (turn * step != offset) {
            i = skip_to(places, n, i + 1, chosen.low + turn * step);
            continue;
        }
        uint64_t position = chosen.backwards ? chosen.count - 1 - turn : turn;
        if (position / 64 != word) {
            words[word] |= bits;
            word = position / 64;
            bits = 0;
        }
        bits |= (uint64_t)!places[i].dead << (position % 64);
        i++;
    }
    words[word] |= bits;
}

static void mark_table(const table *t, selection chosen, uint64_t *words) {
    if (chosen.step == 1) {
        mark_places(t->places, t->count, chosen, 1, words);
    } else {
        mark_places(t->places, t->count, chosen, chosen.step, words);
    }
    mark_places(t->recent, t->n_recent, chosen, chosen.step, words);
}

int bodhi_dataset_mark(bodhi_dataset *dataset, int64_t first, int64_t step, int64_t count, uint64_t *native,
                       uint64_t *alien) {
    int64_t last = first;
    if (dataset == NULL || count < 0 || (count > 0 && (native == NULL || alien == NULL)) || step == 0 ||
        (count > 0 && (__builtin_mul_overflow(count - 1, step, &last) || __builtin_add_overflow(first, last, &last) ||
                       first < 0 || last < 0))) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT, "first is %lld, step %lld, count %lld", (long long)first,
                          (long long)step, (long long)count);
    }
    if (count == 0) {
        return BODHI_OK;
    }
    selection chosen = {.low = (uint64_t)(step < 0 ? last : first),
                        .step = step < 0 ? -(uint64_t)step : (uint64_t)step,
                        .count = (uint64_t)count,
                        .backwards = step < 0};
    pthread_mutex_lock(&dataset->mutex);
    mark_table(&dataset->tables[BODHI_NATIVE], chosen, native);
    mark_table(&dataset->tables[BODHI_ALIEN], chosen, alien);
    pthread_mutex_unlock(&dataset->mutex);
    return BODHI_OK;
}
