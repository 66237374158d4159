/* Reads in order; see server.h. For disks whose arm has to travel: one sweep at a time, in the order of the
 * segments. Connections whose frames are neighbours share a turn: their bytes are asked of the disk together, each once
 * and in one large request, before they are told where their frames lie. */
#include "server/server.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "base/io.h"
#include "base/memory.h"
#include "base/threads.h"
#include "store/dataset.h"

enum {
    GAP_BYTES = 64 << 10,  /* reading on over so much costs less than the arm's way */
    TURN_BYTES = 16 << 20, /* of one connection's frames, unless one alone has more */
    SWEEP_BYTES = 64 << 20 /* no more join a turn that reads so much */
};

static int by_place(const void *left, const void *right) {
    const bodhi_place *a = &((const extent *)left)->at;
    const bodhi_place *b = &((const extent *)right)->at;
    if (a->kind != b->kind) {
        return a->kind < b->kind ? -1 : 1;
    }
    if (a->segment != b->segment) {
        return a->segment < b->segment ? -1 : 1;
    }
    return (a->offset > b->offset) - (a->offset < b->offset);
}

static bool is_same_segment(const extent *a, const extent *b) {
    return a->at.segment == b->at.segment && a->at.kind == b->at.kind;
}

/* Sort extents and join those that are neighbours; returns how many are left. */
static size_t join(extent *extents, size_t n) {
    size_t joined = 0;
    if (n > 1) { /* there may be no array */
        qsort(extents, n, sizeof *extents, by_place);
    }
    for (size_t i = 0; i < n; i++) {
        extent *last = &extents[joined == 0 ? 0 : joined - 1];
        if (joined > 0 && is_same_segment(last, &extents[i]) &&
            (uint64_t)extents[i].at.offset <= last->end + GAP_BYTES) {
            last->end = extents[i].end > last->end ? extents[i].end : last->end;
        } else {
            extents[joined++] = extents[i];
        }
    }
    return joined;
}

/* Whether any of some sorted extents is a neighbour of any of others. */
static bool are_neighbours(const extent *a, size_t n_a, const extent *b, size_t n_b) {
    size_t i = 0;
    size_t j = 0;
    while (i < n_a && j < n_b) {
        if (is_same_segment(&a[i], &b[j]) && (uint64_t)a[i].at.offset <= b[j].end + GAP_BYTES &&
            (uint64_t)b[j].at.offset <= a[i].end + GAP_BYTES) {
            return true;
        }
        if (by_place(&a[i], &b[j]) < 0) {
            i++;
        } else {
            j++;
        }
    }
    return false;
}

/* Note what a connection wants and where that lies, as much as one turn may take. */
static bool note_wanted(connection *c, const int64_t *numbers, size_t n) {
    size_t capacity = 0;
    for (int64_t bytes = 0; c->n_queued < n; c->n_queued++) {
        size_t i = c->n_queued;
        bodhi_place at = {0};
        if (bodhi_dataset_locate(c->dataset->dataset, &numbers[i], 1, &at) == BODHI_OK && at.found != 0) {
            bytes += at.length;
            if (bytes > TURN_BYTES && i > 0) {
                break;
            }
            if (!ARRAY_GROW(c->extents, capacity, c->n_extents + 1)) {
                return false;
            }
            c->extents[c->n_extents++] = (extent){.at = at, .end = (uint64_t)(at.offset + at.length)};
        }
    }
    c->n_extents = join(c->extents, c->n_extents);
    c->queued = malloc((c->n_queued + 1) * sizeof *c->queued); /* more than nothing */
    if (c->queued != NULL) {
        memcpy(c->queued, numbers, c->n_queued * sizeof *c->queued);
    }
    return c->queued != NULL;
}

static void forget_wanted(connection *c) {
    free(c->queued);
    free(c->extents);
    c->queued = NULL;
    c->extents = NULL;
    c->n_queued = c->n_extents = 0;
}

/* Have the disk begin with what a turn reads. */
static void begin_reading(const bodhi_dataset *dataset, const extent *extents, size_t n) {
    int fd = -1;
    for (size_t i = 0; i < n; i++) {
        if (i == 0 || !is_same_segment(&extents[i - 1], &extents[i])) {
            io_drop(fd);
            fd = dataset_share_segment(dataset, &extents[i].at);
        }
        if (fd >= 0) {
            (void)posix_fadvise(fd, extents[i].at.offset, (off_t)extents[i].end - extents[i].at.offset,
                                POSIX_FADV_WILLNEED); /* a hint: those whose turn it is read in any case */
        }
    }
    io_drop(fd);
}

static uint64_t bytes_of(const extent *extents, size_t n) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < n; i++) {
        bytes += extents[i].end - (uint64_t)extents[i].at.offset;
    }
    return bytes;
}

/* What a turn reads. */
typedef struct {
    extent *extents;
    size_t n, capacity;
} sweep;

/* Take a connection into the turn. */
static void take_in(bodhi_server *server, connection *c, sweep *s) {
    if (ARRAY_GROW(s->extents, s->capacity, s->n + c->n_extents)) { /* else the disk is not told of it beforehand */
        for (size_t i = 0; i < c->n_extents; i++) {
            s->extents[s->n++] = c->extents[i];
        }
        s->n = join(s->extents, s->n);
    }
    c->turn = TURN_GRANTED;
    server->n_reading++;
}

/* The next connection that waits and whose frames are neighbours of those of this turn; NULL: none, or it is enough. */
static connection *find_neighbour(bodhi_server *server, const open_dataset *d, const sweep *s) {
    if (bytes_of(s->extents, s->n) >= SWEEP_BYTES) {
        return NULL;
    }
    for (int i = 0; i < server->n_slots; i++) {
        connection *c = &server->connections[i];
        if (c->fd >= 0 && c->turn == TURN_WAITING && c->dataset == d &&
            are_neighbours(s->extents, s->n, c->extents, c->n_extents)) {
            return c;
        }
    }
    return NULL;
}

static bool is_before(const connection *c, const bodhi_place *position) {
    const extent there = {.at = *position};
    return c->n_extents > 0 && by_place(&c->extents[0], &there) < 0;
}

/* Whose turn comes first: the disk's arm goes on from the last turn's place, and then begins anew. */
static bool comes_first(const bodhi_server *server, const connection *c, const connection *other) {
    bool passed = is_before(c, &server->position);
    bool other_passed = is_before(other, &server->position);
    return passed != other_passed ? other_passed : other->n_extents > 0 && is_before(c, &other->extents[0].at);
}

static connection *choose_next(bodhi_server *server) {
    connection *next = NULL;
    for (int i = 0; i < server->n_slots; i++) {
        connection *c = &server->connections[i];
        if (c->fd >= 0 && c->turn == TURN_WAITING && (next == NULL || comes_first(server, c, next))) {
            next = c;
        }
    }
    return next;
}

/* Tell those whose turn has come where their frames lie. */
static void send_granted(bodhi_server *server) {
    for (int i = 0; i < server->n_slots; i++) {
        connection *c = &server->connections[i];
        if (c->fd >= 0 && c->turn == TURN_GRANTED && c->queued != NULL) {
            c->ending = !send_places(server, c, c->queued, c->n_queued);
            forget_wanted(c);
        }
    }
}

static void begin_turn(bodhi_server *server) {
    connection *c = choose_next(server);
    if (c == NULL) {
        return;
    }
    const open_dataset *d = c->dataset;
    sweep s = {0};
    if (c->n_extents > 0) {
        server->position = c->extents[0].at;
    }
    for (; c != NULL; c = find_neighbour(server, d, &s)) {
        server->counters[COUNT_SHARED] += s.n > 0;
        take_in(server, c, &s);
    }
    begin_reading(d->dataset, s.extents, s.n);
    free(s.extents);
    server->reading_deadline = now_ms() + server->options.message_ms;
    send_granted(server);
}

bool turn_wait(bodhi_server *server, connection *c, const int64_t *numbers, size_t n) {
    turn_end(server, c); /* one that asks again has read what it had */
    if (!note_wanted(c, numbers, n)) {
        forget_wanted(c);
        return output_error(c, BODHI_ERROR_MEMORY, "out of memory");
    }
    c->turn = TURN_WAITING;
    if (server->n_reading == 0) {
        begin_turn(server);
    }
    return !c->ending;
}

void turn_end(bodhi_server *server, connection *c) {
    bool granted = c->turn == TURN_GRANTED;
    c->turn = TURN_NONE;
    forget_wanted(c);
    if (granted && --server->n_reading == 0) {
        begin_turn(server);
    }
}

void turn_tick(bodhi_server *server, int64_t now) {
    for (int i = 0; i < server->n_slots && server->n_reading > 0 && now >= server->reading_deadline; i++) {
        connection *c = &server->connections[i];
        if (c->fd >= 0 && c->turn == TURN_GRANTED) {
            turn_end(server, c);
        }
    }
}
