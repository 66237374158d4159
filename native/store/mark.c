/* Which frames a dataset holds: as bits, by which nodes find out who reads what; as runs, which servers tell. */
#include <stdlib.h>

#include "base/status.h"
#include "store/dataset.h"

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
    frame_selection chosen = {.low = (uint64_t)(step < 0 ? last : first),
                              .step = step < 0 ? -(uint64_t)step : (uint64_t)step,
                              .count = (uint64_t)count,
                              .backwards = step < 0};
    pthread_mutex_lock(&dataset->mutex);
    dataset_mark(dataset, BODHI_NATIVE, &chosen, native);
    dataset_mark(dataset, BODHI_ALIEN, &chosen, alien);
    pthread_mutex_unlock(&dataset->mutex);
    return BODHI_OK;
}

int bodhi_dataset_runs(bodhi_dataset *dataset, int kind, int64_t low, int64_t high, bodhi_run *runs, int64_t capacity,
                       int64_t *count) {
    enum { WOVEN = 4 }; /* as many more as are listed before they are joined */
    if (dataset == NULL || (kind != BODHI_NATIVE && kind != BODHI_ALIEN) || low < 0 || capacity < 0 || count == NULL ||
        (runs == NULL && capacity > 0)) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT, "kind is %d, low %lld, capacity %lld", kind, (long long)low,
                          (long long)capacity);
    }
    progressions list = {.most = (size_t)capacity * WOVEN + 1};
    list.of = high < low ? NULL : malloc(list.most * sizeof *list.of);
    *count = high < low ? 0 : -1;
    if (list.of == NULL) {
        return high < low ? BODHI_OK : bodhi_fail_memory();
    }
    pthread_mutex_lock(&dataset->mutex);
    bool listed = dataset_list(dataset, (unsigned)kind, (uint64_t)low, (uint64_t)high, &list);
    pthread_mutex_unlock(&dataset->mutex);
    if (listed && list.n <= (size_t)capacity) {
        for (size_t i = 0; i < list.n; i++) {
            const progression *p = &list.of[i];
            runs[i] = (bodhi_run){.first = (int64_t)p->first, .step = (int64_t)p->step, .count = (int64_t)p->count};
        }
        *count = (int64_t)list.n;
    }
    free(list.of);
    return BODHI_OK;
}
