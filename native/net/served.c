/* A dataset that a server has open; see served.h.
 *
 * A reader is granted places and descriptors of as many frames as a message takes, or, with reads in turns, as much as
 * a turn takes: it reads that, and says that it is done. */
#include "net/served.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/io.h"
#include "base/status.h"
#include "base/threads.h"

enum {
    /* Bytes of requests to another machine, and how many: each begins with a wait for it, and all stay in the
     * processor's cache until they are used. */
    REMOTE_REQUEST = 2 << 20,
    REMOTE_RING = 3,
    MOST_PARTS = 256,       /* extents in a request */
    MOST_BYTES = 512 << 10, /* and their bytes: an answer is checked while the processor's cache has it */
    AHEAD = 2               /* requests on their way */
};

struct grants {
    locator head;
    served_dataset *from;
    int descriptors[WIRE_MAX_SEGMENTS], n_descriptors;
    int direct[WIRE_MAX_SEGMENTS]; /* of the descriptors, past the page cache; -1: there is none */
    segment_key keys[WIRE_MAX_SEGMENTS];
    uint8_t kinds[WIRE_MAX_SEGMENTS];
};

static grants *grants_of(locator *l) {
    return (grants *)(void *)l;
}

/* --- Asking ------------------------------------------------------------------------------------------------------ */

static int note_status(served_dataset *d, int status) {
    if (status < 0) {
        link_close(&d->link);
        d->turn = NULL;
    }
    return status;
}

/* Ask, and have the answer in the link. */
static int ask(served_dataset *d, enum wire_verb verb, const wire_part *parts, int n) {
    return note_status(d, link_ask(&d->link, verb, parts, n, now_ms() + d->timeout_ms));
}

int served_ask(served_dataset *d, enum wire_verb verb, const wire_question *question, const char *name,
               unsigned char **body, size_t *bytes) {
    const wire_part parts[] = {{question, sizeof *question}, {name, strlen(name)}};
    pthread_mutex_lock(&d->talking);
    int status = ask(d, verb, parts, 2);
    if (status >= 0) {
        *bytes = d->link.in.size;
        *body = wire_take_body(&d->link.in);
    }
    pthread_mutex_unlock(&d->talking);
    return status;
}

int served_open(served_dataset *d, const char *name, const void *generation, size_t generation_bytes) {
    void *content = (void *)(uintptr_t)generation; /* which is sent, and not changed */
    const wire_open open = {.name = name, .identity = "", .generation = content, .generation_bytes = generation_bytes};
    return note_status(d, link_open(&d->link, &open, &d->opened, now_ms() + d->timeout_ms));
}

/* --- Being granted places ---------------------------------------------------------------------------------------- */

static int ask_places(served_dataset *d, const target *list, size_t n) {
    unsigned char *numbers = malloc(n * 8);
    if (numbers == NULL) {
        return bodhi_fail_memory();
    }
    for (size_t i = 0; i < n; i++) {
        uint64_t number = list[i].place.number;
        put64(numbers + 8 * i, number > INT64_MAX ? INT64_MAX : number); /* negative: it is a miss, too */
    }
    d->turn = NULL; /* asking for another one ends it */
    const wire_part part = {numbers, n * 8};
    int status = ask(d, WIRE_READ, &part, 1);
    free(numbers);
    return status;
}

/* A place as the reader knows it. False: no server says so. */
static bool take_place(int n_segments, const wire_place *from, target *to) {
    to->kind = -1;
    to->reason = from->length == 0 ? BODHI_REASON_ABSENT : BODHI_REASON_GONE;
    if (from->descriptor < 0) {
        return true;
    }
    uint64_t most = (uint64_t)UINT32_MAX * UNIT;
    if (from->descriptor >= n_segments || from->kind > BODHI_ALIEN || from->length == 0 || from->length > most ||
        from->offset > most || from->length % UNIT != 0 || from->offset % UNIT != 0) {
        return false;
    }
    to->place.segment = (uint32_t)from->descriptor;
    to->place.offset = (uint32_t)(from->offset / UNIT);
    to->place.length = (uint32_t)(from->length / UNIT);
    to->place.head = from->head;
    to->place.fields = from->fields;
    to->kind = (int8_t)from->kind;
    return true;
}

static bool take_places(grants *g, target *list, size_t n) {
    for (size_t i = 0; i < n; i++) {
        wire_place at;
        memcpy(&at, g->from->link.records + i * sizeof at, sizeof at);
        if (!take_place(g->from->remote ? WIRE_MAX_SEGMENTS : g->n_descriptors, &at, &list[i])) {
            return false;
        }
        if (list[i].kind >= 0) {
            const wire_opened *o = &g->from->opened;
            g->keys[at.descriptor] =
                (segment_key){.dataset = o->dataset, .generation = o->generation, .segment = at.segment};
            g->kinds[at.descriptor] = at.kind;
        }
    }
    return true;
}

/* Open the segments once more, past the page cache; another user's cannot be. */
static void open_direct(grants *g) {
    for (int i = 0; i < g->n_descriptors; i++) {
        char path[32];
        (void)snprintf(path, sizeof path, "/proc/self/fd/%d", g->descriptors[i]);
        g->direct[i] = g->head.direct ? io_open(AT_FDCWD, path, O_RDONLY | O_DIRECT) : -1;
    }
}

/* End our turn at the server. That waits for nothing: a server that does not take so few bytes is lost. */
static void end_turn(locator *l) {
    served_dataset *d = grants_of(l)->from;
    if (d->turn != grants_of(l)) {
        return;
    }
    if (d->link.fd >= 0) {
        (void)note_status(d, link_send_message(&d->link, WIRE_READ, NULL, 0, now_ms()));
    }
    d->turn = NULL;
}

static void let_go(grants *g) {
    for (; g->n_descriptors > 0; g->n_descriptors--) {
        io_drop(g->descriptors[g->n_descriptors - 1]);
        io_drop(g->direct[g->n_descriptors - 1]);
    }
    end_turn(&g->head);
}

/* Be granted as many of `n` places as come with one answer: *count. */
static int be_granted(grants *g, target *list, size_t n, size_t *count) {
    served_dataset *d = g->from;
    size_t n_asked = n < WIRE_MAX_NUMBERS ? n : WIRE_MAX_NUMBERS;
    int status = ask_places(d, list, n_asked);
    if (status < 0) {
        return status;
    }
    memcpy(g->descriptors, d->link.descriptors, sizeof g->descriptors);
    g->n_descriptors = d->link.n_descriptors;
    d->link.n_descriptors = 0;
    d->turn = g->head.end_turn != NULL ? g : NULL;
    open_direct(g);
    *count = d->link.count;
    if (*count == 0 || *count > n_asked || d->link.n_bytes != *count * sizeof(wire_place) ||
        !take_places(g, list, *count)) {
        return note_status(d, bodhi_fail(BODHI_ERROR_PROTOCOL, "%s: places that are none", d->link.address));
    }
    return BODHI_OK;
}

static int locate(locator *l, target *list, size_t n, size_t *count) {
    grants *g = grants_of(l);
    pthread_mutex_lock(&g->from->talking);
    let_go(g);
    int status = be_granted(g, list, n, count);
    pthread_mutex_unlock(&g->from->talking);
    if (status == BODHI_OK || status == BODHI_ERROR_MEMORY || status == BODHI_ERROR_INTERRUPTED) {
        return status;
    }
    *count = n;
    for (size_t i = 0; i < n; i++) {
        list[i].kind = -1;
        list[i].reason = BODHI_REASON_UNREACHABLE;
    }
    return BODHI_OK;
}

/* --- Bringing bytes -----------------------------------------------------------------------------------------------
 *
 * Requests are kept on their way ahead of the answer that is being received, so that the server reads, authenticates
 * and sends while this side checks. They are few and small enough that both sides' buffers take them: else each side
 * could wait for the other to read. */

/* What is to be requested, or received, next: list[at], from this byte of it on. */
typedef struct {
    fetched *list;
    size_t n, at;
    uint64_t from;
} cursor;

typedef struct {
    fetched *request;
    uint64_t from;
    uint32_t size;
} part;

/* The parts of the next request; returns how many. */
static size_t next_request(cursor *c, part parts[MOST_PARTS]) {
    size_t bytes = 0;
    size_t n = 0;
    while (c->at < c->n && n < MOST_PARTS && bytes < MOST_BYTES) {
        fetched *request = &c->list[c->at];
        uint64_t left = request->size - c->from;
        uint32_t size = (uint32_t)(left < MOST_BYTES - bytes ? left : MOST_BYTES - bytes);
        parts[n++] = (part){request, c->from, size};
        bytes += size;
        c->from += size;
        if (c->from == request->size) {
            c->at++;
            c->from = 0;
        }
    }
    return n;
}

static int request_extents(wire_link *link, int64_t deadline, const segment_key *segments, const uint8_t *kinds,
                           cursor *c) {
    part parts[MOST_PARTS];
    wire_extent extents[MOST_PARTS];
    size_t n = next_request(c, parts);
    for (size_t i = 0; i < n; i++) {
        const fetched *request = parts[i].request;
        extents[i] = (wire_extent){.segment = segments[request->segment].segment,
                                   .offset = request->offset + parts[i].from,
                                   .size = parts[i].size,
                                   .kind = kinds[request->segment]};
    }
    const wire_part body = {extents, n * sizeof *extents};
    return link_send_message(link, WIRE_TAKE, &body, 1, deadline);
}

/* Take what came for a request. False: it does not fit. */
static bool take_extents(const wire_link *link, cursor *c) {
    part parts[MOST_PARTS];
    const unsigned char *body = link->records;
    size_t n = next_request(c, parts);
    size_t at = 4 * n;
    if (link->count != n || link->n_bytes < at) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        fetched *request = parts[i].request;
        uint32_t got = get32(body + 4 * i);
        uint32_t bytes = got == WIRE_GONE ? 0 : got;
        if (bytes > parts[i].size || bytes > link->n_bytes - at) {
            return false;
        }
        if (bytes > 0) {
            memcpy(request->to + parts[i].from, body + at, bytes);
        }
        if (bytes < parts[i].size && request->error == 0) {
            request->error = got == WIRE_GONE ? ENOENT : -1;
        }
        at += bytes;
    }
    return at == link->n_bytes;
}

int extents_fetch(wire_link *link, int64_t timeout_ms, const segment_key *segments, const uint8_t *kinds, fetched *list,
                  size_t n) {
    cursor requests = {.list = list, .n = n};
    cursor answers = requests;
    int on_their_way = 0;
    int status = BODHI_OK;
    while (status == BODHI_OK && answers.at < n) {
        if (requests.at < n && on_their_way < AHEAD) {
            on_their_way++;
            status = request_extents(link, now_ms() + timeout_ms, segments, kinds, &requests);
            continue;
        }
        on_their_way--;
        status = link_answer(link, WIRE_TAKE, now_ms() + timeout_ms);
        if (status == BODHI_OK && !take_extents(link, &answers)) {
            status = bodhi_fail(BODHI_ERROR_PROTOCOL, "%s: bytes that were not asked for", link->address);
        }
    }
    for (size_t i = 0; status != BODHI_OK && i < n; i++) {
        list[i].error = ENOTCONN;
    }
    return status;
}

static void fetch(locator *l, fetched *list, size_t n) {
    const grants *g = grants_of(l);
    served_dataset *d = g->from;
    pthread_mutex_lock(&d->talking);
    (void)note_status(d, extents_fetch(&d->link, d->timeout_ms, g->keys, g->kinds, list, n));
    pthread_mutex_unlock(&d->talking);
}

/* --- The rest of a locator --------------------------------------------------------------------------------------- */

static int pin(locator *l, uint32_t ordinal, bool direct) {
    const grants *g = grants_of(l);
    return direct && g->direct[ordinal] >= 0 ? g->direct[ordinal] : g->descriptors[ordinal];
}

static void unpin(locator *l, uint32_t ordinal) {
    (void)l;
    (void)ordinal;
}

/* The server tells of one copy. */
static void pass_over(locator *l, target *w) {
    (void)l;
    w->kind = -1;
}

static void close_grants(locator *l) {
    grants *g = grants_of(l);
    pthread_mutex_lock(&g->from->talking);
    let_go(g);
    pthread_mutex_unlock(&g->from->talking);
    free(g);
}

int served_reader_open(served_dataset *d, const int64_t *numbers, int64_t n, const bodhi_read_options *options,
                       bodhi_reader **reader) {
    grants *g = calloc(1, sizeof *g);
    if (g == NULL) {
        return bodhi_fail_memory();
    }
    g->from = d;
    g->head = (locator){.locate = locate,
                        .pin = pin,
                        .unpin = unpin,
                        .fetch = d->remote ? fetch : NULL,
                        .pass_over = pass_over,
                        .end_turn = d->opened.in_turns != 0 && !d->remote ? end_turn : NULL,
                        .close = close_grants,
                        .keys = g->keys,
                        .exceeds_memory = exceeds_memory(d->opened.bytes)};
    bodhi_read_options chosen = options == NULL ? (bodhi_read_options){0} : *options;
    if (d->remote) { /* a request crosses the network, and the page cache in question is the server's */
        chosen.request_bytes = chosen.request_bytes == 0 ? REMOTE_REQUEST : chosen.request_bytes;
        chosen.ring = chosen.ring == 0 ? REMOTE_RING : chosen.ring;
        chosen.direct = BODHI_DIRECT_OFF;
    }
    return reader_open(&g->head, numbers, n, &chosen, reader);
}

/* --- Closing ----------------------------------------------------------------------------------------------------- */

void served_close(served_dataset *d) {
    pthread_mutex_lock(&d->talking);
    link_close(&d->link);
    pthread_mutex_unlock(&d->talking);
}
