/* Sealing segments; see writer.h. Nothing here is synced: a table that a power cut has torn is read as none. */
#include "base/io.h"
#include "base/status.h"
#include "write/writer.h"

static bool is_worth(const segment *s, uint64_t least) {
    uint64_t there = s->sealed == NULL ? 0 : sealed_living(s->sealed);
    return !s->gone && !s->refused && !s->frozen && !s->incomplete && s->live >= there + least && s->live > 0;
}

/* Whether all was loaded of a segment that this process knows. Else somebody appends just now, and seals it when he is
 * done. */
static bool is_all(bodhi_dataset *dataset, uint32_t ordinal, const segment *loaded) {
    pthread_mutex_lock(&dataset->mutex);
    const segment *s = dataset->segments[ordinal];
    bool same = !s->gone && loaded->covered == s->covered && loaded->index_at == s->index_at &&
                loaded->index_inode == s->index_inode;
    pthread_mutex_unlock(&dataset->mutex);
    return same && !loaded->frozen && !loaded->incomplete && loaded->index_covered == loaded->covered;
}

static bool write_table(bodhi_dataset *dataset, const segment *loaded, findings *content, room *r) {
    uint64_t size = sealed_bytes(content);
    if (room_ask(r, dataset, size) != BODHI_OK) {
        return false;
    }
    room_take(r, size);
    bool written = sealed_write(dataset->fd, loaded, content);
    room_settle(r, size);
    return written;
}

/* Have the table of what was loaded in place of what is in memory, unless others have put another into its place. The
 * caller holds the mutex. */
static void take_over(bodhi_dataset *dataset, uint32_t ordinal, const segment *loaded, const findings *content) {
    segment *s = dataset->segments[ordinal];
    findings known = {0};
    sealed *t = s->gone ? NULL : sealed_open(dataset->fd, s, ordinal, s->covered, &known);
    findings_free(&known);
    /* What is dead here is so in the new table, too. Mostly, nothing is. */
    bool all_live = s->covered == loaded->covered && s->live == content->n_places;
    size_t n = t == NULL || all_live ? 0 : content->n_places;
    for (size_t i = 0; i < n; i++) {
        place copy = content->places[i];
        copy.segment = ordinal;
        if (dataset_is_dead(dataset, s->kind, &copy)) {
            (void)sealed_kill(t, copy.number);
        }
    }
    if (t == NULL || t->facts.covered != loaded->covered || dataset->torn ||
        (s->sealed != NULL && s->sealed->facts.covered > t->facts.covered)) {
        sealed_close(t);
        return;
    }
    s->live += sealed_living(t);
    s->live -= s->sealed == NULL ? 0 : sealed_living(s->sealed);
    s->live -= table_remove(&dataset->tables[s->kind], ordinal, (uint32_t)(t->facts.covered / UNIT));
    dataset_set_sealed(dataset, s, t);
}

void seal_appended(bodhi_dataset *dataset, uint32_t ordinal, uint64_t least, room *r) {
    segment loaded;
    findings content = {0};
    pthread_mutex_lock(&dataset->mutex);
    const segment *s = dataset->segments[ordinal];
    bool worth = is_worth(s, least) && !is_read_only(dataset);
    int fd = worth ? dataset_share(dataset, ordinal) : -1; /* it is not evicted meanwhile */
    (void)segment_from_name(&loaded, s->name, s->key.dataset, s->key.generation);
    pthread_mutex_unlock(&dataset->mutex);
    if (fd < 0) {
        return;
    }
    if (segment_load(dataset->fd, &loaded, ordinal, LOAD_UNSEALED, &content) == 0 &&
        is_all(dataset, ordinal, &loaded) && write_table(dataset, &loaded, &content, r)) {
        pthread_mutex_lock(&dataset->mutex);
        take_over(dataset, ordinal, &loaded, &content);
        pthread_mutex_unlock(&dataset->mutex);
    }
    findings_free(&content);
    io_drop(fd);
}

int bodhi_dataset_seal(bodhi_dataset *dataset, int64_t least) {
    if (dataset == NULL || least < 0 || is_read_only(dataset)) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT, "a dataset open for writing and a number of frames must be given");
    }
    room r = {.fd = -1};
    pthread_mutex_lock(&dataset->mutex);
    size_t n = dataset->n_segments;
    pthread_mutex_unlock(&dataset->mutex);
    for (uint32_t i = 0; i < n; i++) {
        seal_appended(dataset, i, least == 0 ? SEAL_LEAST : (uint64_t)least, &r);
    }
    room_close(&r);
    return BODHI_OK;
}
