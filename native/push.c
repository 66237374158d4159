/* Pushing frames to the servers of several nodes; the public functions are in bodhi.h.
 *
 * A frame is copied into a slot and sent to the next server in turn; its slot is free when a server has acknowledged
 * it. A server that breaks off or does not answer in time is asked over a new connection what it has: opening that
 * one ends the old one, so that the answer is final. What it has is acknowledged; what it has not, or what nobody can
 * be asked about, goes to the next server. So a frame is twice in the stores only if its server could not be asked. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io.h"
#include "link.h"
#include "status.h"

enum {
    MAX_SLOTS = 8192,
    BATCHES_IN_FLIGHT = 4,
    DEFAULT_TIMEOUT_MS = 30000,
    DIAL_MS = 5000, /* at most, to be connected and admitted */
    FIRST_PAUSE_MS = 1000,
    MAX_PAUSE_MS = 60000,
    MAX_SERVERS = 4096
};
#define DEFAULT_BATCH_BYTES (INT64_C(16) << 20)

enum { NOWHERE = -1, FREE = -2 };

/* A frame in flight. */
typedef struct {
    uint64_t number;
    unsigned char *message; /* header and body */
    size_t size, capacity;
    int server; /* that it was sent to; NOWHERE: it waits to be given to one; FREE */
    bool again; /* it was given to a server before */
} slot;

typedef struct {
    char *address;
    wire_link link; /* fd -1: not connected */
    uint8_t token[WIRE_TOKEN];
    int64_t in_flight;     /* slots */
    int next_acknowledged; /* the slot at which the search for the next acknowledged frame begins */
    int64_t unasked;       /* bytes sent since the last FLUSH */
    int64_t asked_at;      /* when a FLUSH went that was not answered yet; 0: none waits */
    int64_t retry_at;
    int64_t pause_ms;
} server;

struct bodhi_pusher {
    char *name;
    unsigned char *generation;
    size_t generation_bytes;
    bodhi_push_options options;
    uint8_t key[KEY_MOST];
    size_t key_bytes; /* 0: none */
    server *servers;
    int n_servers, turn;
    slot *slots;
    int *unused; /* indices of free slots, a queue: slots are used in turn, so that acknowledgements find theirs soon */
    int first_unused, n_unused;
    int64_t bytes; /* in flight */
    int n_waiting; /* slots that are NOWHERE */
    int refused;   /* status with which servers refused frames lately, or 0 */
    bodhi_push_facts facts;
};

/* --- Slots ------------------------------------------------------------------------------------------------------- */

static void free_slot(bodhi_pusher *p, slot *s) {
    enum { KEPT = 1 << 20 };
    if (s->server >= 0) {
        p->servers[s->server].in_flight--;
    } else {
        p->n_waiting--;
    }
    p->bytes -= (int64_t)s->size;
    s->server = FREE;
    if (s->capacity > KEPT) {
        free(s->message);
        s->message = NULL;
        s->capacity = 0;
    }
    p->unused[(p->first_unused + p->n_unused++) % MAX_SLOTS] = (int)(s - p->slots);
    p->facts.in_flight--;
}

static void unsend(bodhi_pusher *p, slot *s) {
    p->servers[s->server].in_flight--;
    s->server = NOWHERE;
    s->again = true;
    p->n_waiting++;
}

static void acknowledged(bodhi_pusher *p, slot *s) {
    free_slot(p, s);
    p->facts.acknowledged++;
}

/* The slot with which frame `number` was sent to server `i`. */
static slot *sent_slot(bodhi_pusher *p, int i, uint64_t number) {
    server *from = &p->servers[i];
    for (int j = 0; j < MAX_SLOTS; j++) {
        slot *s = &p->slots[(from->next_acknowledged + j) % MAX_SLOTS];
        if (s->server == i && s->number == number) {
            from->next_acknowledged = (int)(s - p->slots) + 1;
            return s;
        }
    }
    return NULL;
}

static bool reserve(slot *s, size_t size) {
    if (size > s->capacity) {
        free(s->message);
        s->message = malloc(size);
        s->capacity = s->message == NULL ? 0 : size;
    }
    return s->message != NULL;
}

static slot *fill_slot(bodhi_pusher *p, const bodhi_frame *frame) {
    const float *fields[] = {frame->positions, frame->velocities, frame->forces};
    size_t field = (size_t)frame->n_atoms * 12;
    size_t size = WIRE_FRAME_HEAD;
    for (int i = 0; i < 3; i++) {
        size += fields[i] != NULL ? field : 0;
    }
    slot *s = &p->slots[p->unused[p->first_unused]];
    if (!reserve(s, WIRE_HEADER + size)) {
        return NULL;
    }
    unsigned char *body = s->message + WIRE_HEADER;
    unsigned char *at = body + WIRE_FRAME_HEAD;
    wire_write_frame(body, frame);
    for (int i = 0; i < 3; i++) {
        if (fields[i] != NULL) {
            memcpy(at, fields[i], field);
            at += field;
        }
    }
    wire_part part = {body, size};
    wire_header(s->message, WIRE_FRAME, &part, 1);
    p->first_unused = (p->first_unused + 1) % MAX_SLOTS;
    p->n_unused--;
    s->number = (uint64_t)frame->number;
    s->size = WIRE_HEADER + size;
    s->server = NOWHERE;
    s->again = false;
    p->n_waiting++;
    p->bytes += (int64_t)s->size;
    p->facts.in_flight++;
    return s;
}

/* --- Servers ----------------------------------------------------------------------------------------------------- */

/* Leave a server alone for a while. */
static void rest(server *s) {
    link_close(&s->link);
    s->asked_at = 0;
    s->unasked = 0;
    s->retry_at = link_now() + s->pause_ms;
    s->pause_ms = s->pause_ms * 2 > MAX_PAUSE_MS ? MAX_PAUSE_MS : s->pause_ms * 2;
}

static int connect_server(bodhi_pusher *p, server *s) {
    int64_t deadline = link_now() + p->options.timeout_ms;
    uint32_t flags = WIRE_PUSHES | (p->options.durable != 0 ? (uint32_t)WIRE_DURABLE : 0U);
    int64_t dialled = link_now() + DIAL_MS < deadline ? link_now() + DIAL_MS : deadline;
    int status = link_dial(&s->link, s->address, geteuid(), p->key_bytes > 0 ? p->key : NULL, p->key_bytes, dialled);
    if (status == BODHI_OK) {
        status = link_open(&s->link, flags, s->token, p->name, p->generation, p->generation_bytes, deadline);
    }
    if (status != BODHI_OK) {
        rest(s);
        return status;
    }
    s->asked_at = 0;
    s->unasked = 0;
    return BODHI_OK;
}

/* Ask a server that was just connected to which of the frames sent to it before it has. */
static int ask_what_it_has(bodhi_pusher *p, int i) {
    server *s = &p->servers[i];
    unsigned char *numbers = malloc((size_t)MAX_SLOTS * 8);
    uint16_t *at = malloc((size_t)MAX_SLOTS * sizeof *at);
    int n = 0;
    if (numbers == NULL || at == NULL) {
        free(numbers);
        free(at);
        return bodhi_fail_memory();
    }
    for (int j = 0; j < MAX_SLOTS; j++) {
        if (p->slots[j].server == i) {
            wire_put64(numbers + (size_t)n * 8, p->slots[j].number);
            at[n++] = (uint16_t)j;
        }
    }
    wire_part part = {numbers, (size_t)n * 8};
    int status = link_ask(&s->link, WIRE_HAVE, &part, 1, WIRE_HELD, link_now() + p->options.timeout_ms);
    if (status == BODHI_OK && s->link.in.size != (uint32_t)n) {
        status = bodhi_fail(BODHI_ERROR_PROTOCOL, "%s: an answer that does not fit the question", s->address);
    }
    for (int j = 0; j < n && status == BODHI_OK; j++) {
        if (s->link.in.body[j] == 1) {
            acknowledged(p, &p->slots[at[j]]);
        }
    }
    free(numbers);
    free(at);
    return status;
}

/* A server broke off or was too slow: ask it once more; what it does not have, or nobody knows of, is to be given
 * again. */
static void doubt(bodhi_pusher *p, int i) {
    server *s = &p->servers[i];
    link_close(&s->link);
    int status = connect_server(p, s);
    if (status == BODHI_OK && s->in_flight > 0 && ask_what_it_has(p, i) != BODHI_OK) {
        rest(s);
    }
    for (int j = 0; j < MAX_SLOTS && s->in_flight > 0; j++) {
        if (p->slots[j].server == i) {
            unsend(p, &p->slots[j]);
        }
    }
}

/* --- Acknowledgements -------------------------------------------------------------------------------------------- */

/* Take an ACK. False: the server cannot keep frames now. */
static bool take_acks(bodhi_pusher *p, int i) {
    server *s = &p->servers[i];
    bool keeps = true;
    for (uint32_t at = 0; at + WIRE_ACK_BYTES <= s->link.in.size; at += WIRE_ACK_BYTES) {
        uint64_t number;
        int32_t status;
        wire_parse_ack(s->link.in.body + at, &number, &status);
        slot *found = sent_slot(p, i, number);
        if (found == NULL) {
            continue;
        }
        if (status >= 0) {
            acknowledged(p, found);
        } else {
            p->refused = status;
            keeps = false;
            unsend(p, found);
        }
    }
    s->asked_at = 0;
    if (keeps) {
        s->pause_ms = FIRST_PAUSE_MS;
        p->refused = 0;
    }
    return keeps;
}

/* Take all that a server has sent. */
static void hear(bodhi_pusher *p, int i) {
    server *s = &p->servers[i];
    while (s->link.fd >= 0) {
        int status = link_receive(&s->link, 0);
        if (status == BODHI_END) {
            return;
        }
        if (status != BODHI_OK || s->link.in.verb != WIRE_ACK) {
            doubt(p, i);
            return;
        }
        if (!take_acks(p, i)) {
            for (int j = 0; j < MAX_SLOTS && s->in_flight > 0; j++) {
                if (p->slots[j].server == i) {
                    unsend(p, &p->slots[j]);
                }
            }
            rest(s);
        }
    }
}

/* Hear all servers, waiting up to `wait_ms` for the first word; doubt those that are late. */
static void hear_all(bodhi_pusher *p, int64_t wait_ms) {
    struct pollfd polled[64];
    nfds_t n = 0;
    for (int i = 0; i < p->n_servers && n < sizeof polled / sizeof *polled; i++) {
        if (p->servers[i].link.fd >= 0 && p->servers[i].in_flight > 0) {
            polled[n++] = (struct pollfd){.fd = p->servers[i].link.fd, .events = POLLIN};
        }
    }
    (void)bodhi_io.poll(polled, n, (int)wait_ms);
    int64_t now = link_now();
    for (int i = 0; i < p->n_servers; i++) {
        server *s = &p->servers[i];
        if (s->link.fd >= 0) {
            hear(p, i);
        }
        if (s->link.fd >= 0 && s->asked_at != 0 && now - s->asked_at > p->options.timeout_ms) {
            doubt(p, i);
        }
    }
}

static void ask_for_acks(bodhi_pusher *p, int i) {
    server *s = &p->servers[i];
    if (link_send_message(&s->link, WIRE_FLUSH, NULL, 0, link_now() + p->options.timeout_ms) != BODHI_OK) {
        doubt(p, i);
        return;
    }
    s->unasked = 0;
    s->asked_at = s->asked_at == 0 ? link_now() : s->asked_at;
}

/* --- Giving ------------------------------------------------------------------------------------------------------ */

/* The next server in turn that is connected, or can be now; -1: none. */
static int choose_server(bodhi_pusher *p) {
    for (int tried = 0; tried < p->n_servers; tried++) {
        int i = p->turn;
        server *s = &p->servers[i];
        p->turn = (p->turn + 1) % p->n_servers;
        if (s->link.fd >= 0 || (link_now() >= s->retry_at && connect_server(p, s) == BODHI_OK)) {
            return i;
        }
    }
    return -1;
}

static void give(bodhi_pusher *p, slot *s, int i) {
    server *to = &p->servers[i];
    s->server = i;
    p->n_waiting--;
    to->in_flight++;
    p->facts.given_again += s->again;
    if (link_send(&to->link, s->message, s->size, link_now() + p->options.timeout_ms) != BODHI_OK) {
        doubt(p, i);
        return;
    }
    to->unasked += (int64_t)s->size;
    if (to->unasked >= p->options.batch_bytes) {
        ask_for_acks(p, i);
    }
}

/* Give what waits to servers, until nothing waits or none takes it. */
static bool give_waiting(bodhi_pusher *p) {
    while (p->n_waiting > 0) {
        for (int j = 0; j < MAX_SLOTS && p->n_waiting > 0; j++) {
            if (p->slots[j].server != NOWHERE) {
                continue;
            }
            int i = choose_server(p);
            if (i < 0) {
                return false;
            }
            give(p, &p->slots[j], i);
        }
    }
    return true;
}

static int fail_nowhere(const bodhi_pusher *p) {
    if (p->refused != 0) {
        return bodhi_fail(p->refused, "no server takes frames (%s); %lld wait", bodhi_status_name(p->refused),
                          (long long)p->n_waiting);
    }
    return bodhi_fail(BODHI_ERROR_UNREACHABLE, "none of %d servers answers; %lld frames wait", p->n_servers,
                      (long long)p->n_waiting);
}

/* Wait until `enough` says so, as long as acknowledgements come in. */
static int wait_until(bodhi_pusher *p, bool (*enough)(const bodhi_pusher *p), bool ask) {
    enum { STEP_MS = 100 };
    int64_t before = p->facts.acknowledged;
    int64_t deadline = link_now() + p->options.timeout_ms;
    hear_all(p, 0);
    bool given = give_waiting(p);
    while (!(given && enough(p))) {
        if (p->facts.acknowledged != before) {
            before = p->facts.acknowledged;
            deadline = link_now() + p->options.timeout_ms;
        } else if (!given && link_now() >= deadline) {
            return fail_nowhere(p);
        }
        for (int i = 0; i < p->n_servers && ask; i++) {
            const server *s = &p->servers[i];
            if (s->link.fd >= 0 && s->in_flight > 0 && s->unasked > 0) {
                ask_for_acks(p, i);
            }
        }
        hear_all(p, STEP_MS);
        given = give_waiting(p);
    }
    return BODHI_OK;
}

static bool has_room(const bodhi_pusher *p) {
    return p->n_unused > 0 && (p->bytes < p->options.batch_bytes * BATCHES_IN_FLIGHT || p->facts.in_flight == 0);
}

static bool is_empty(const bodhi_pusher *p) {
    return p->facts.in_flight == 0;
}

int bodhi_push(bodhi_pusher *pusher, const bodhi_frame *frame) {
    if (pusher == NULL || frame == NULL || frame->number < 0 || frame->n_atoms < 1 || frame->positions == NULL ||
        frame->n_atoms > (WIRE_MAX_FRAME - WIRE_FRAME_HEAD) / 36) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT, "a frame needs a number from 0, 1 to %u atoms, and positions",
                          (WIRE_MAX_FRAME - WIRE_FRAME_HEAD) / 36);
    }
    int status = wait_until(pusher, has_room, !has_room(pusher));
    if (status != BODHI_OK) {
        return status;
    }
    slot *s = fill_slot(pusher, frame);
    if (s == NULL) {
        return bodhi_fail_memory();
    }
    int i = choose_server(pusher);
    if (i >= 0) {
        give(pusher, s, i);
        (void)give_waiting(pusher); /* if none takes it, the next call waits for one */
    }
    return BODHI_OK;
}

int bodhi_push_flush(bodhi_pusher *pusher) {
    if (pusher == NULL) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT, "pusher must be given");
    }
    return wait_until(pusher, is_empty, true);
}

void bodhi_push_query(const bodhi_pusher *pusher, bodhi_push_facts *facts) {
    *facts = pusher->facts;
    facts->servers_up = 0;
    for (int i = 0; i < pusher->n_servers; i++) {
        facts->servers_up += pusher->servers[i].link.fd >= 0;
    }
}

/* --- Opening and closing ----------------------------------------------------------------------------------------- */

static void free_pusher(bodhi_pusher *p) {
    for (int i = 0; p->servers != NULL && i < p->n_servers; i++) {
        link_close(&p->servers[i].link);
        free(p->servers[i].address);
    }
    for (int i = 0; p->slots != NULL && i < MAX_SLOTS; i++) {
        free(p->slots[i].message);
    }
    free(p->servers);
    free(p->slots);
    free(p->unused);
    free(p->name);
    free(p->generation);
    memset(p->key, 0, sizeof p->key);
    free(p);
}

static int make_servers(bodhi_pusher *p, const char *const *servers, int n) {
    p->servers = calloc((size_t)n, sizeof *p->servers);
    if (p->servers == NULL) {
        return bodhi_fail_memory();
    }
    p->n_servers = n;
    for (int i = 0; i < n; i++) {
        p->servers[i].link.fd = -1;
    }
    for (int i = 0; i < n; i++) {
        server *s = &p->servers[i];
        s->pause_ms = FIRST_PAUSE_MS;
        s->address = servers[i] == NULL ? NULL : strdup(servers[i]);
        if (s->address == NULL || !io_random(s->token, sizeof s->token)) {
            return bodhi_fail(BODHI_ERROR_ARGUMENT, "server %d has no address, or memory is out", i);
        }
    }
    uint32_t first;
    p->turn = io_random(&first, sizeof first) ? (int)(first % (uint32_t)n) : 0;
    return BODHI_OK;
}

static int make_pusher(bodhi_pusher *p, const char *dataset, const void *generation, size_t generation_bytes) {
    bodhi_push_options *o = &p->options;
    o->timeout_ms = o->timeout_ms <= 0 ? DEFAULT_TIMEOUT_MS : o->timeout_ms;
    o->batch_bytes = o->batch_bytes <= 0 ? DEFAULT_BATCH_BYTES : o->batch_bytes;
    p->name = strdup(dataset);
    p->generation = malloc(generation_bytes + 1);
    p->slots = calloc(MAX_SLOTS, sizeof *p->slots);
    p->unused = malloc(MAX_SLOTS * sizeof *p->unused);
    if (p->name == NULL || p->generation == NULL || p->slots == NULL || p->unused == NULL) {
        return bodhi_fail_memory();
    }
    if (generation_bytes > 0) {
        memcpy(p->generation, generation, generation_bytes);
    }
    p->generation_bytes = generation_bytes;
    for (int i = 0; i < MAX_SLOTS; i++) {
        p->slots[i].server = FREE;
        p->unused[p->n_unused++] = i;
    }
    return o->key_file == NULL ? BODHI_OK : link_read_key(o->key_file, p->key, &p->key_bytes);
}

/* One server that answers is enough; of several errors the last one is told. */
static int connect_first(bodhi_pusher *p) {
    int status = BODHI_ERROR_UNREACHABLE;
    for (int tried = 0; tried < p->n_servers; tried++) {
        int i = (p->turn + tried) % p->n_servers;
        status = connect_server(p, &p->servers[i]);
        if (status == BODHI_OK) {
            p->turn = i;
            return BODHI_OK;
        }
    }
    return status;
}

int bodhi_push_open(const char *const *servers, int n, const char *dataset, const void *generation,
                    size_t generation_bytes, const bodhi_push_options *options, bodhi_pusher **pusher) {
    if (servers == NULL || n < 1 || n > MAX_SERVERS || dataset == NULL || pusher == NULL || *dataset == '\0' ||
        strlen(dataset) > WIRE_MAX_NAME || generation_bytes > WIRE_MAX_NAME ||
        (generation == NULL && generation_bytes > 0)) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT,
                          "pushing needs 1 to %d servers and a dataset's name of 1 to %d bytes, not %d servers",
                          MAX_SERVERS, WIRE_MAX_NAME, n);
    }
    bodhi_pusher *p = calloc(1, sizeof *p);
    if (p == NULL) {
        return bodhi_fail_memory();
    }
    p->options = options == NULL ? (bodhi_push_options){0} : *options;
    int status = make_pusher(p, dataset, generation, generation_bytes);
    if (status == BODHI_OK) {
        status = make_servers(p, servers, n);
    }
    if (status == BODHI_OK) {
        status = connect_first(p);
    }
    if (status != BODHI_OK) {
        free_pusher(p);
        return status;
    }
    p->options.key_file = NULL; /* the caller's */
    *pusher = p;
    return BODHI_OK;
}

int bodhi_push_close(bodhi_pusher *pusher) {
    if (pusher == NULL) {
        return BODHI_OK;
    }
    int status = bodhi_push_flush(pusher);
    free_pusher(pusher);
    return status;
}
