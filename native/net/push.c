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

#include "base/clock.h"
#include "base/io.h"
#include "base/status.h"
#include "net/link.h"
#include "net/slots.h"

enum {
    MAX_IN_FLIGHT = 8192, /* frames: as many as a HAVE may ask about, at least */
    BATCHES_IN_FLIGHT = 4,
    DEFAULT_TIMEOUT_MS = 30000,
    DIAL_MS = 5000, /* at most, to be connected and admitted */
    FIRST_PAUSE_MS = 1000,
    MAX_PAUSE_MS = 60000,
    MAX_SERVERS = 4096,
    PATIENCE = 3 /* timeouts without an acknowledgement, while frames are taken, until it is an error */
};
#define DEFAULT_BATCH_BYTES (INT64_C(16) << 20)

typedef struct {
    char *address;
    wire_link link; /* fd -1: not connected */
    uint8_t token[WIRE_TOKEN];
    slot_list sent;   /* to it, and not acknowledged yet */
    int64_t unasked;  /* bytes sent since the last FLUSH */
    int64_t asked_at; /* when a FLUSH went that was not answered yet; 0: none waits */
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
    slot_list unused;
    slot_list waiting; /* to be given to a server */
    int64_t bytes;     /* in flight */
    int refused;       /* status with which servers refused frames lately, or 0 */
    char reason[512];  /* what a server said of that; "": nothing */
    bodhi_push_facts facts;
};

/* --- Slots ------------------------------------------------------------------------------------------------------- */

static void acknowledged(bodhi_pusher *p, slot *s) {
    p->bytes -= (int64_t)s->size;
    p->facts.in_flight--;
    p->facts.acknowledged++;
    slots_drop(&p->unused, s);
}

static void requeue(bodhi_pusher *p, slot *s) {
    s->again = true;
    slots_append(&p->waiting, s);
}

/* All that was sent to a server is to be sent again. */
static void requeue_all(bodhi_pusher *p, server *from) {
    slot *s;
    while ((s = slots_take(&from->sent)) != NULL) {
        requeue(p, s);
    }
}

/* --- Servers ----------------------------------------------------------------------------------------------------- */

/* Do not try a server again for a while. */
static void back_off(server *s) {
    link_close(&s->link);
    s->asked_at = 0;
    s->unasked = 0;
    s->retry_at = now_ms() + s->pause_ms;
    s->pause_ms = s->pause_ms * 2 > MAX_PAUSE_MS ? MAX_PAUSE_MS : s->pause_ms * 2;
}

static int connect_server(bodhi_pusher *p, server *s) {
    int64_t deadline = now_ms() + p->options.timeout_ms;
    uint32_t flags = WIRE_PUSHES | (p->options.durable != 0 ? (uint32_t)WIRE_DURABLE : 0U);
    int64_t dialled = now_ms() + DIAL_MS < deadline ? now_ms() + DIAL_MS : deadline;
    int status = link_dial(&s->link, s->address, geteuid(), p->key_bytes > 0 ? p->key : NULL, p->key_bytes, dialled);
    if (status == BODHI_OK) {
        status = link_open(&s->link, flags, s->token, p->name, p->generation, p->generation_bytes, deadline);
    }
    if (status != BODHI_OK) {
        back_off(s);
        return status;
    }
    s->asked_at = 0;
    s->unasked = 0;
    return BODHI_OK;
}

/* Ask a server that was just connected to which of the frames sent to it before it has. */
static int ask_what_it_has(bodhi_pusher *p, server *s) {
    int64_t n = 0;
    unsigned char *numbers = malloc((size_t)MAX_IN_FLIGHT * 8);
    if (numbers == NULL) {
        return bodhi_fail_memory();
    }
    for (const slot *each = s->sent.first; each != NULL; each = each->next) {
        wire_put64(numbers + (size_t)n++ * 8, each->number);
    }
    wire_part part = {numbers, (size_t)n * 8};
    int status = link_ask(&s->link, WIRE_HAVE, &part, 1, WIRE_KINDS, now_ms() + p->options.timeout_ms);
    free(numbers);
    if (status == BODHI_OK && s->link.in.size != (uint32_t)n) {
        status = bodhi_fail(BODHI_ERROR_PROTOCOL, "%s: an answer that does not fit the question", s->address);
    }
    for (int64_t i = 0; i < n && status == BODHI_OK; i++) {
        slot *each = slots_take(&s->sent);
        if (s->link.in.body[i] == 1) {
            acknowledged(p, each);
        } else {
            requeue(p, each);
        }
    }
    return status;
}

/* A server broke off or was too slow: ask it once more; what it does not have, or nobody knows of, is to be given
 * again. */
static void resync(bodhi_pusher *p, int i) {
    server *s = &p->servers[i];
    link_close(&s->link);
    int status = connect_server(p, s);
    if (status == BODHI_OK && s->sent.n > 0 && ask_what_it_has(p, s) != BODHI_OK) {
        back_off(s);
    }
    requeue_all(p, s);
}

/* --- Acknowledgements -------------------------------------------------------------------------------------------- */

/* Take an ACK. False: the server cannot store frames now. */
static bool take_acks(bodhi_pusher *p, int i) {
    server *s = &p->servers[i];
    bool stores = true;
    for (uint32_t at = 0; at + WIRE_ACK_BYTES <= s->link.in.size; at += WIRE_ACK_BYTES) {
        uint64_t number;
        int32_t status;
        wire_parse_ack(s->link.in.body + at, &number, &status);
        slot *found = slots_take_number(&s->sent, number);
        if (found == NULL) {
            continue;
        }
        if (status >= 0) {
            acknowledged(p, found);
        } else {
            p->refused = status;
            stores = false;
            requeue(p, found);
        }
    }
    s->asked_at = 0;
    if (stores) {
        s->pause_ms = FIRST_PAUSE_MS;
        p->refused = 0;
    }
    return stores;
}

/* Keep what a server that has refused frames says of it, if it does so at once; it is not asked any more. */
static void take_reason(bodhi_pusher *p, server *s) {
    enum { AT_ONCE_MS = 1000 };
    if (link_receive(&s->link, now_ms() + AT_ONCE_MS) == BODHI_OK && s->link.in.verb == WIRE_ERROR) {
        (void)snprintf(p->reason, sizeof p->reason, "%s: %.*s", s->address, (int)s->link.in.size - 4,
                       (const char *)s->link.in.body + 4);
    }
}

/* Take all that a server has sent. */
static void receive_acks(bodhi_pusher *p, int i) {
    server *s = &p->servers[i];
    while (s->link.fd >= 0) {
        int status = link_receive(&s->link, 0);
        if (status == BODHI_END) {
            return;
        }
        if (status != BODHI_OK || s->link.in.verb != WIRE_ACK) {
            resync(p, i);
            return;
        }
        if (!take_acks(p, i)) {
            take_reason(p, s);
            resync(p, i); /* what it took before is not given to another */
            back_off(s);
        }
    }
}

/* Receive from all servers, waiting up to `wait_ms` for the first word; resync with those that are late. */
static void receive_all(bodhi_pusher *p, int64_t wait_ms) {
    struct pollfd polled[64];
    nfds_t n = 0;
    for (int i = 0; i < p->n_servers && n < sizeof polled / sizeof *polled; i++) {
        if (p->servers[i].link.fd >= 0 && p->servers[i].sent.n > 0) {
            polled[n++] = (struct pollfd){.fd = p->servers[i].link.fd, .events = POLLIN};
        }
    }
    (void)bodhi_io.poll(polled, n, (int)wait_ms);
    int64_t now = now_ms();
    for (int i = 0; i < p->n_servers; i++) {
        server *s = &p->servers[i];
        if (s->link.fd >= 0) {
            receive_acks(p, i);
        }
        if (s->link.fd >= 0 && s->asked_at != 0 && now - s->asked_at > p->options.timeout_ms) {
            resync(p, i);
        }
    }
}

static void ask_for_acks(bodhi_pusher *p, int i) {
    server *s = &p->servers[i];
    if (link_send_message(&s->link, WIRE_FLUSH, NULL, 0, now_ms() + p->options.timeout_ms) != BODHI_OK) {
        resync(p, i);
        return;
    }
    s->unasked = 0;
    s->asked_at = s->asked_at == 0 ? now_ms() : s->asked_at;
}

/* --- Giving ------------------------------------------------------------------------------------------------------ */

/* The next server in turn that is connected, or can be now; -1: none. */
static int choose_server(bodhi_pusher *p) {
    for (int tried = 0; tried < p->n_servers; tried++) {
        int i = p->turn;
        server *s = &p->servers[i];
        p->turn = (p->turn + 1) % p->n_servers;
        if (s->link.fd >= 0 || (now_ms() >= s->retry_at && connect_server(p, s) == BODHI_OK)) {
            return i;
        }
    }
    return -1;
}

static void give(bodhi_pusher *p, slot *s, int i) {
    server *to = &p->servers[i];
    slots_append(&to->sent, s);
    p->facts.given_again += s->again;
    if (link_send(&to->link, s->message, s->size, now_ms() + p->options.timeout_ms) != BODHI_OK) {
        resync(p, i);
        return;
    }
    to->unasked += (int64_t)s->size;
    if (to->unasked >= p->options.batch_bytes) {
        ask_for_acks(p, i);
    }
}

/* Give what waits to servers, until nothing waits or none takes it. */
static bool give_waiting(bodhi_pusher *p) {
    while (p->waiting.n > 0) {
        int i = choose_server(p);
        if (i < 0) {
            return false;
        }
        give(p, slots_take(&p->waiting), i);
    }
    return true;
}

static int fail_nowhere(const bodhi_pusher *p) {
    if (p->waiting.n == 0) {
        return bodhi_fail(BODHI_ERROR_UNREACHABLE, "no server has acknowledged a frame for %lld s; %lld are in flight",
                          (long long)p->options.timeout_ms * PATIENCE / 1000, (long long)p->facts.in_flight);
    }
    if (p->refused != 0) {
        return bodhi_fail(p->refused, "no server takes frames (%s); %lld wait",
                          p->reason[0] != '\0' ? p->reason : bodhi_status_name(p->refused), (long long)p->waiting.n);
    }
    return bodhi_fail(BODHI_ERROR_UNREACHABLE, "none of %d servers answers; %lld frames wait", p->n_servers,
                      (long long)p->waiting.n);
}

static bool is_interrupted(const bodhi_pusher *p) {
    return p->options.interrupted != NULL && p->options.interrupted() != 0;
}

static void ask_all_for_acks(bodhi_pusher *p) {
    for (int i = 0; i < p->n_servers; i++) {
        const server *s = &p->servers[i];
        if (s->link.fd >= 0 && s->sent.n > 0 && s->unasked > 0) {
            ask_for_acks(p, i);
        }
    }
}

/* Wait until `enough` says so, as long as acknowledgements come in. A server that takes frames is given more time for
 * its first word than one that does not. */
static int wait_until(bodhi_pusher *p, bool (*enough)(const bodhi_pusher *p), bool ask) {
    enum { STEP_MS = 100 };
    int64_t before = p->facts.acknowledged;
    int64_t since = now_ms();
    receive_all(p, 0);
    bool given = give_waiting(p);
    while (!(given && enough(p))) {
        int64_t silent = now_ms() - since;
        if (p->facts.acknowledged != before) {
            before = p->facts.acknowledged;
            since = now_ms();
        } else if (silent >= p->options.timeout_ms * (given ? PATIENCE : INT64_C(1))) {
            return fail_nowhere(p);
        }
        if (ask) {
            ask_all_for_acks(p);
        }
        receive_all(p, STEP_MS);
        given = give_waiting(p);
        if (is_interrupted(p)) {
            return bodhi_fail(BODHI_ERROR_INTERRUPTED, "interrupted; %lld frames are in flight",
                              (long long)p->facts.in_flight);
        }
    }
    return BODHI_OK;
}

static bool has_room(const bodhi_pusher *p) {
    return p->facts.in_flight < MAX_IN_FLIGHT &&
           (p->bytes < p->options.batch_bytes * BATCHES_IN_FLIGHT || p->facts.in_flight == 0);
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
    slot *s = slots_fill(&pusher->unused, frame);
    if (s == NULL) {
        return bodhi_fail_memory();
    }
    slots_append(&pusher->waiting, s);
    pusher->bytes += (int64_t)s->size;
    pusher->facts.in_flight++;
    (void)give_waiting(pusher); /* if none takes it, the next call waits for one */
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
        slots_free(&p->servers[i].sent);
        free(p->servers[i].address);
    }
    slots_free(&p->waiting);
    slots_free(&p->unused);
    free(p->servers);
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
        p->servers[i].link = (wire_link){.fd = -1, .interrupted = p->options.interrupted};
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
    if (p->name == NULL || p->generation == NULL) {
        return bodhi_fail_memory();
    }
    if (generation_bytes > 0) {
        memcpy(p->generation, generation, generation_bytes);
    }
    p->generation_bytes = generation_bytes;
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

void bodhi_push_abandon(bodhi_pusher *pusher) {
    if (pusher != NULL) {
        free_pusher(pusher);
    }
}

int bodhi_push_close(bodhi_pusher *pusher) {
    if (pusher == NULL) {
        return BODHI_OK;
    }
    int status = bodhi_push_flush(pusher);
    free_pusher(pusher);
    return status;
}
