/* Sealing segments; see writer.h. Nothing here is synced: a table that a power cut has torn is read as none. */
#include "write/writer.h"

#include <errno.h>
#include <stdlib.h>

#include "base/io.h"
#include "base/memory.h"
#include "base/status.h"

/* Dead places of one segment, sorted by number. */
typedef struct {
    place *places;
    size_t n;
} dead_places;

/* --- What is sealed ---------------------------------------------------------------------------------------------- */

static bool is_worth(const segment *s, uint64_t least) {
    uint64_t there = s->sealed == NULL ? 0 : sealed_living(s->sealed);
    uint64_t dead = s->sealed == NULL ? 0 : s->sealed->n_dead;
    return !s->gone && !s->refused && !s->frozen && !s->incomplete && s->live - there + dead >= least && s->live > 0;
}

/* The segment as it is to be loaded from its index alone. */
static segment unloaded(const segment *s) {
    segment fresh;
    (void)segment_from_name(&fresh, s->name, s->key.dataset, s->key.generation);
    fresh.torn = s->torn;
    return fresh;
}

/* Whether a place that the index tells was dropped when it was in the table. */
static bool was_dropped(const dead_places *gone, const place *p) {
    size_t low;
    ARRAY_SEARCH(low, gone->n, i, gone->places[i].number < p->number);
    while (low < gone->n && gone->places[low].number == p->number && gone->places[low].offset != p->offset) {
        low++;
    }
    return low < gone->n && gone->places[low].number == p->number && gone->places[low].dead == PLACE_DROPPED;
}

/* Leave out the places that were dropped: of those that were sealed, what is not there any more. False: they cannot be
 * told. The caller holds the mutex. */
static bool leave_out_dropped(bodhi_dataset *dataset, uint32_t ordinal, findings *found) {
    const segment *s = dataset->segments[ordinal];
    enum sealed_answer answer = SEALED_FOUND;
    dead_places gone = {0};
    if (!table_dead(&dataset->tables[s->kind], ordinal, &gone.places, &gone.n)) {
        return false;
    }
    size_t kept = 0;
    for (size_t i = 0; i < found->n_places && answer != SEALED_TORN; i++) {
        const place p = found->places[i];
        bool was_sealed = s->sealed != NULL && (uint64_t)p.offset * UNIT < s->sealed->covered;
        if (was_sealed) {
            answer = sealed_keeps(s->sealed, dataset->fd, &p);
        } else {
            answer = was_dropped(&gone, &p) ? SEALED_ABSENT : SEALED_FOUND;
        }
        found->places[kept] = p;
        kept += answer == SEALED_FOUND;
    }
    found->n_places = kept;
    free(gone.places);
    return answer != SEALED_TORN;
}

/* Load all of a segment that this process knows, but for what was dropped. False: it cannot be sealed now. */
static bool load_all(bodhi_dataset *dataset, uint32_t ordinal, uint64_t least, segment *loaded, findings *found) {
    pthread_mutex_lock(&dataset->mutex);
    const segment *s = dataset->segments[ordinal];
    bool worth = is_worth(s, least) && dataset_load(dataset, ordinal, false) == 0 && is_worth(s, least);
    *loaded = unloaded(s);
    pthread_mutex_unlock(&dataset->mutex);
    if (!worth || segment_load(dataset->fd, loaded, ordinal, LOAD_UNSEALED, found) != 0) {
        return false;
    }
    pthread_mutex_lock(&dataset->mutex);
    /* Else somebody appends just now, and seals it when he is done. */
    bool same = !s->gone && loaded->covered == s->covered && loaded->index_at == s->index_at && !loaded->incomplete &&
                loaded->index_covered == loaded->covered && loaded->index_inode == s->index_inode &&
                leave_out_dropped(dataset, ordinal, found);
    pthread_mutex_unlock(&dataset->mutex);
    return same;
}

/* --- Writing ----------------------------------------------------------------------------------------------------- */

static bool write_table(bodhi_dataset *dataset, uint64_t stamp, const segment *loaded, findings *found, room *r) {
    size_t size = 0;
    char name[SEGMENT_NAME];
    unsigned char *data =
        seal_layout(loaded, stamp, found->places, found->n_places, found->tombstones, found->n_tombstones, &size);
    sealed_name(loaded, name);
    bool done = data != NULL && room_ask(r, dataset, size) == BODHI_OK;
    if (done) {
        room_take(r, size);
        done = io_write_file(dataset->fd, name, data, size, FILE_UNSYNCED);
        room_settle(r, size);
    }
    free(data);
    return done;
}

/* --- Taking over ------------------------------------------------------------------------------------------------- */

/* What died since, or was passed over, is so in the new table, too. */
static void hand_over_dead(const sealed *from, sealed *to, int directory) {
    place there;
    for (size_t i = 0; from != NULL && i < from->n_dead; i++) {
        uint64_t number = from->dead[i] / 2;
        if (sealed_find(to, directory, number, &there) == SEALED_FOUND &&
            (uint64_t)there.offset * UNIT < from->covered) {
            (void)sealed_kill(to, number, from->dead[i] % 2 != 0);
        }
    }
}

static void hand_over_places(const table *from, uint32_t ordinal, sealed *to, int directory) {
    place there;
    dead_places gone = {0};
    (void)table_dead(from, ordinal, &gone.places, &gone.n);
    for (size_t i = 0; i < gone.n; i++) {
        if (sealed_find(to, directory, gone.places[i].number, &there) == SEALED_FOUND &&
            there.offset == gone.places[i].offset) {
            (void)sealed_kill(to, there.number, gone.places[i].dead == PLACE_PASSED_OVER);
        }
    }
    free(gone.places);
}

/* Have what was written in place of what is in memory, unless others have sealed the segment meanwhile: who lacks
 * frames that are known here, or has some that were dropped. The caller holds the mutex. */
static void take_over(bodhi_dataset *dataset, uint32_t ordinal, uint64_t stamp) {
    segment *s = dataset->segments[ordinal];
    findings known = {0};
    sealed *t = s->gone ? NULL : sealed_open(dataset->fd, s, ordinal, s->covered, &known);
    findings_free(&known);
    if (t == NULL || t->stamp != stamp || (s->sealed != NULL && t->covered < s->sealed->covered)) {
        sealed_close(t);
        return;
    }
    hand_over_dead(s->sealed, t, dataset->fd);
    hand_over_places(&dataset->tables[s->kind], ordinal, t, dataset->fd);
    dataset_remove_sealed(dataset, ordinal);
    s->sealed = t;
    if (!dataset_add_sealed(dataset, ordinal)) {
        dataset_remove_sealed(dataset, ordinal);
        dataset->torn = true; /* as if it could not be read */
        dataset_mend(dataset);
        return;
    }
    table_remove(&dataset->tables[s->kind], ordinal, (uint32_t)(t->covered / UNIT));
    s->live = sealed_living(t) + table_living_in(&dataset->tables[s->kind], ordinal);
}

void seal_appended(bodhi_dataset *dataset, uint32_t ordinal, uint64_t least, room *r) {
    pthread_mutex_lock(&dataset->mutex);
    bool worth = is_worth(dataset->segments[ordinal], least) && !is_read_only(dataset);
    int fd = worth ? dataset_share(dataset, ordinal) : -1; /* it is not evicted meanwhile */
    pthread_mutex_unlock(&dataset->mutex);
    if (fd < 0) {
        return;
    }
    segment loaded;
    findings found = {0};
    uint64_t stamp;
    if (io_random(&stamp, sizeof stamp) && load_all(dataset, ordinal, least, &loaded, &found) &&
        write_table(dataset, stamp, &loaded, &found, r)) {
        pthread_mutex_lock(&dataset->mutex);
        take_over(dataset, ordinal, stamp);
        pthread_mutex_unlock(&dataset->mutex);
    }
    findings_free(&found);
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
