/* A dataset that a server has open; see served.h.
 *
 * A reader is granted places and descriptors of as many frames as a message takes, and asks for the next ones while it
 * reads these. With reads in turns it is granted as much as a turn takes, reads that, and says that it is done. */
#include "net/served.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/io.h"
#include "base/status.h"
#include "net/extents.h"

enum {
    FEWEST = 64, /* frames to ask for where less than all were granted before */
    /* Bytes of requests to another machine, and how many: each begins with a wait for it, and all stay in the
     * processor's cache until they are used. */
    REMOTE_REQUEST = 2 << 20,
    REMOTE_RING = 3
};

/* Descriptors and places that came with one message. */
typedef struct {
    unsigned char *body;
    size_t capacity, count;
    int descriptors[WIRE_MAX_SEGMENTS], n_descriptors;
} granted;

struct grants {
    locator head;
    served_dataset *from;
    granted now, next;
    int direct[WIRE_MAX_SEGMENTS]; /* of now.descriptors, past the page cache; -1: there is none */
    segment_key keys[WIRE_MAX_SEGMENTS];
    uint8_t kinds[WIRE_MAX_SEGMENTS];
    bool is_asked; /* for `next` */
    size_t asked;  /* so many places */
    size_t most;   /* to ask for at once */
};

static grants *of(locator *l) {
    return (grants *)(void *)l;
}

/* Whether bytes come over the link, too. */
static bool is_remote(const grants *g) {
    return g->head.fetch != NULL;
}

/* --- Asking ------------------------------------------------------------------------------------------------------ */

static void forget(granted *g) {
    while (g->n_descriptors > 0) {
        io_drop(g->descriptors[--g->n_descriptors]);
    }
    g->count = 0;
}

/* Take over what came with a message. */
static void take_granted(wire_link *link, granted *g) {
    g->body = wire_take_body(&link->in, &g->capacity, g->body, g->capacity);
    g->count = link->in.size / WIRE_PLACE_BYTES;
    memcpy(g->descriptors, link->descriptors, sizeof g->descriptors);
    g->n_descriptors = link->n_descriptors;
    link->n_descriptors = 0;
}

static int settle(served_dataset *d, int status) {
    if (status < 0) {
        link_close(&d->link);
        d->due = false;
        d->turn = NULL;
    }
    return status;
}

/* Receive the answer that is due. */
static int receive_due(served_dataset *d) {
    if (!d->due) {
        return BODHI_OK;
    }
    int status = link_answer(&d->link, WIRE_PLACES, now_ms() + d->timeout_ms);
    d->due = false;
    if (status == BODHI_OK) {
        granted nobodys = {0};
        take_granted(&d->link, d->awaited == NULL ? &nobodys : &d->awaited->next);
        forget(&nobodys);
        free(nobodys.body);
    }
    return settle(d, status);
}

int served_ask(served_dataset *d, enum wire_verb verb, const void *data, size_t size, enum wire_verb expected,
               unsigned char **body, size_t *bytes) {
    const wire_part part = {data, size};
    size_t capacity;
    pthread_mutex_lock(&d->talking);
    int status = d->link.fd < 0 ? bodhi_fail(BODHI_ERROR_UNREACHABLE, "the connection is closed") : receive_due(d);
    if (status >= 0) {
        status = settle(d, link_ask(&d->link, verb, &part, 1, expected, now_ms() + d->timeout_ms));
    }
    if (status >= 0) {
        *bytes = d->link.in.size;
        *body = wire_take_body(&d->link.in, &capacity, NULL, 0);
    }
    pthread_mutex_unlock(&d->talking);
    return status;
}

int served_open(served_dataset *d, const char *name, const void *generation, size_t generation_bytes) {
    static const uint8_t no_token[WIRE_TOKEN];
    int status = link_open(&d->link, 0, no_token, name, generation, generation_bytes, "", now_ms() + d->timeout_ms);
    if (status != BODHI_OK) {
        return settle(d, status);
    }
    wire_opened opened;
    wire_parse_opened(d->link.in.body, &opened);
    memcpy(d->identity, opened.identity, sizeof d->identity);
    d->native = opened.native;
    d->alien = opened.alien;
    d->key = (segment_key){.dataset = opened.dataset, .generation = opened.generation};
    d->in_turns = opened.in_turns && !d->remote;
    d->exceeds_memory = exceeds_memory(opened.bytes);
    return BODHI_OK;
}

/* --- Being granted places ---------------------------------------------------------------------------------------- */

/* Ask where frames lie, and do not wait for the answer. */
static int ask_ahead(grants *g, const wanted *list, size_t n) {
    served_dataset *d = g->from;
    g->asked = n < g->most ? n : g->most;
    unsigned char *numbers = malloc(g->asked * 8);
    if (numbers == NULL) {
        return bodhi_fail_memory();
    }
    for (size_t i = 0; i < g->asked; i++) {
        uint64_t number = list[i].place.number;
        put64(numbers + 8 * i, number > INT64_MAX ? INT64_MAX : number); /* negative: it is a miss, too */
    }
    int status = d->link.fd < 0 ? bodhi_fail(BODHI_ERROR_UNREACHABLE, "the connection is closed") : receive_due(d);
    if (status == BODHI_OK) {
        d->turn = NULL; /* asking for another one ends it */
        wire_part part = {numbers, g->asked * 8};
        status = link_send_message(&d->link, WIRE_READ, &part, 1, now_ms() + d->timeout_ms);
    }
    if (status == BODHI_OK) {
        d->due = g->is_asked = true;
        d->awaited = g;
    }
    free(numbers);
    return settle(d, status);
}

/* A place as the reader knows it. False: no server says so. */
static bool take_place(int n_segments, const wire_place *from, wanted *to) {
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

static bool take_places(grants *g, wanted *list) {
    bool right = g->now.count > 0 && g->now.count <= g->asked;
    for (size_t i = 0; right && i < g->now.count; i++) {
        wire_place at;
        wire_parse_place(g->now.body + i * WIRE_PLACE_BYTES, &at);
        right = take_place(is_remote(g) ? WIRE_MAX_SEGMENTS : g->now.n_descriptors, &at, &list[i]);
        if (right && list[i].kind >= 0) {
            g->keys[at.descriptor] = g->from->key;
            g->keys[at.descriptor].segment = at.segment;
            g->kinds[at.descriptor] = at.kind;
        }
    }
    return right;
}

/* Open the segments once more, past the page cache; another user's cannot be. */
static void open_direct(grants *g) {
    for (int i = 0; i < g->now.n_descriptors; i++) {
        char path[32];
        (void)snprintf(path, sizeof path, "/proc/self/fd/%d", g->now.descriptors[i]);
        g->direct[i] = g->head.direct ? io_open(AT_FDCWD, path, O_RDONLY | O_DIRECT) : -1;
    }
}

/* Tell the server that a turn of ours has ended, unless that would have to wait: one that is not told gives the turn to
 * others in time. */
static void end_turn(locator *l) {
    served_dataset *d = of(l)->from;
    if (d->turn != of(l)) {
        return;
    }
    unsigned char done[WIRE_HEADER + MAC_BYTES];
    wire_header(done, WIRE_DONE, NULL, 0);
    size_t size = WIRE_HEADER + wire_tag(&d->link.mac, done, NULL, 0, done + WIRE_HEADER);
    ssize_t sent = d->link.fd < 0 ? 0 : link_send_some(&d->link, done, size);
    if ((sent != 0 || d->link.mac.on) && sent != (ssize_t)size) {
        (void)settle(d, BODHI_ERROR_UNREACHABLE); /* half a message */
    }
    d->turn = NULL;
}

static void let_go(grants *g) {
    for (int i = 0; i < g->now.n_descriptors; i++) {
        io_drop(g->direct[i]);
    }
    forget(&g->now);
    end_turn(&g->head);
}

/* Wait for what was asked for. */
static int receive(grants *g, wanted *list) {
    served_dataset *d = g->from;
    int status = receive_due(d);
    if (status < 0) {
        return status;
    }
    granted empty = g->now;
    g->now = g->next;
    g->next = empty;
    g->is_asked = false;
    d->turn = d->in_turns ? g : NULL;
    open_direct(g);
    if (!take_places(g, list)) {
        return settle(d, bodhi_fail(BODHI_ERROR_PROTOCOL, "%s: places that are none", d->link.address));
    }
    g->most = g->now.count < g->asked ? g->now.count * 2 : WIRE_MAX_NUMBERS;
    g->most = g->most < FEWEST ? FEWEST : g->most > WIRE_MAX_NUMBERS ? WIRE_MAX_NUMBERS : g->most;
    return BODHI_OK;
}

static int locate_next(grants *g, wanted *list, size_t n, size_t *count) {
    let_go(g);
    int status = g->is_asked ? BODHI_OK : ask_ahead(g, list, n);
    if (status == BODHI_OK) {
        status = receive(g, list);
    }
    if (status == BODHI_ERROR_MEMORY || status == BODHI_ERROR_INTERRUPTED) {
        return status;
    }
    *count = status == BODHI_OK ? g->now.count : n;
    for (size_t i = 0; status != BODHI_OK && i < n; i++) {
        list[i].kind = -1;
        list[i].reason = BODHI_REASON_UNREACHABLE;
    }
    if (*count < n && !g->from->in_turns) {
        status = ask_ahead(g, list + *count, n - *count);
    }
    /* Any other failure is found out when they are wanted. */
    return status == BODHI_ERROR_INTERRUPTED ? status : BODHI_OK;
}

static int locate(locator *l, wanted *list, size_t n, size_t *count) {
    served_dataset *d = of(l)->from;
    pthread_mutex_lock(&d->talking);
    int status = locate_next(of(l), list, n, count);
    pthread_mutex_unlock(&d->talking);
    return status;
}

/* --- Bringing bytes --- */

static void fetch(locator *l, fetched *list, size_t n) {
    const grants *g = of(l);
    served_dataset *d = g->from;
    pthread_mutex_lock(&d->talking);
    int status = d->link.fd < 0 ? BODHI_ERROR_UNREACHABLE : receive_due(d);
    for (size_t i = 0; status < 0 && i < n; i++) {
        list[i].error = ENOTCONN;
    }
    if (status >= 0) {
        (void)settle(d, extents_fetch(&d->link, d->timeout_ms, g->keys, g->kinds, list, n));
    }
    pthread_mutex_unlock(&d->talking);
}

/* --- The rest of a locator --------------------------------------------------------------------------------------- */

static int pin(locator *l, uint32_t ordinal, bool direct) {
    const grants *g = of(l);
    return direct && g->direct[ordinal] >= 0 ? g->direct[ordinal] : g->now.descriptors[ordinal];
}

static void unpin(locator *l, uint32_t ordinal) {
    (void)l;
    (void)ordinal;
}

/* The server tells of one copy. */
static void pass_over(locator *l, wanted *w) {
    (void)l;
    w->kind = -1;
}

static void close_grants(locator *l) {
    grants *g = of(l);
    pthread_mutex_lock(&g->from->talking);
    if (g->from->awaited == g) {
        g->from->awaited = NULL;
    }
    let_go(g);
    pthread_mutex_unlock(&g->from->talking);
    forget(&g->next);
    free(g->now.body);
    free(g->next.body);
    free(g);
}

int served_reader_open(served_dataset *d, const int64_t *numbers, int64_t n, const bodhi_read_options *options,
                       bodhi_reader **reader) {
    grants *g = calloc(1, sizeof *g);
    if (g == NULL) {
        return bodhi_fail_memory();
    }
    g->from = d;
    g->most = d->in_turns ? FEWEST : WIRE_MAX_NUMBERS;
    g->head = (locator){.locate = locate,
                        .pin = pin,
                        .unpin = unpin,
                        .fetch = d->remote ? fetch : NULL,
                        .pass_over = pass_over,
                        .end_turn = d->in_turns ? end_turn : NULL,
                        .close = close_grants,
                        .keys = g->keys,
                        .exceeds_memory = d->exceeds_memory,
                        .mutex = &d->mutex,
                        .spare = &d->spare};
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
    d->due = false;
    pthread_mutex_unlock(&d->talking);
}

void served_free(served_dataset *d) {
    served_close(d);
    if (d->spare != NULL) {
        d->spare->free(d->spare);
    }
    d->spare = NULL;
}
