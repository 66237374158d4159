/* Pushing frames to the servers of several nodes; the public functions are in bodhi.h.
 *
 * A frame is copied into a slot and sent to the server that its number names, or to the next one that answers: so who
 * pushes a frame of this number once more meets the one that is there. Its slot is free when a server has acknowledged
 * it. A server that breaks off or does not answer in time is asked over a new connection what it has: opening that
 * one ends the old one, so that the answer is final. What it has, just as it was sent, is acknowledged; what it has
 * not, or what nobody can be asked about, goes to the next server. So a frame is twice in the stores only if its server
 * could not be asked. */
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
#include "segments/record.h"

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
    char *identity;
    server *servers; /* in the order of their addresses, whatever it was in the call */
    int n_servers;
    uint64_t start; /* the server of frame 0, modulo their number */
    slot_list unused;
    slot_list waiting; /* to be given to a server */
    int64_t bytes;     /* in flight */
    int refused;       /* status with which servers refused frames lately, or 0 */
    bool conflict;     /* what is there is of another simulation: nothing more is pushed */
    char reason[1024]; /* what a server said of that; "": nothing */
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

/* Another simulation has the dataset: whatever else the other servers take, this one must not go on. */
static void note_conflict(bodhi_pusher *p, const char *reason) {
    if (!p->conflict) {
        (void)snprintf(p->reason, sizeof p->reason, "%s", reason);
    }
    p->conflict = true;
}

static int connect_server(bodhi_pusher *p, server *s) {
    int64_t deadline = now_ms() + p->options.timeout_ms;
    uint32_t flags = WIRE_PUSHES | (p->options.durable != 0 ? (uint32_t)WIRE_DURABLE : 0U);
    int64_t dialled = now_ms() + DIAL_MS < deadline ? now_ms() + DIAL_MS : deadline;
    int status = link_dial(&s->link, s->address, geteuid(), p->key_bytes > 0 ? p->key : NULL, p->key_bytes, dialled);
    if (status == BODHI_OK) {
        status =
            link_open(&s->link, flags, s->token, p->name, p->generation, p->generation_bytes, p->identity, deadline);
    }
    if (status == BODHI_ERROR_CONFLICT) {
        note_conflict(p, bodhi_message());
    }
    if (status != BODHI_OK) {
        back_off(s);
        return status;
    }
    s->asked_at = 0;
    s->unasked = 0;
    return BODHI_OK;
}

/* Take what a server says of the first frame sent to it. */
static void take_kept(bodhi_pusher *p, server *s, unsigned kept) {
    slot *each = slots_take(&s->sent);
    if (kept == WIRE_HELD) {
        acknowledged(p, each);
        return;
    }
    if (kept == WIRE_OTHER) {
        char reason[256];
        (void)snprintf(reason, sizeof reason, "%.100s: frame %llu of dataset %.60s is there with other content",
                       s->address, (unsigned long long)each->number, p->name);
        note_conflict(p, reason);
    }
    requeue(p, each);
}

/* Ask a server that was just connected to which of the frames sent to it before it has, as they were sent. */
static int ask_what_it_has(bodhi_pusher *p, server *s) {
    int64_t n = 0;
    unsigned char *asked = calloc((size_t)MAX_IN_FLIGHT, WIRE_KEEP_BYTES);
    if (asked == NULL) {
        return bodhi_fail_memory();
    }
    for (const slot *each = s->sent.first; each != NULL; each = each->next) {
        unsigned char *at = asked + (size_t)n++ * WIRE_KEEP_BYTES;
        wire_put64(at, each->number);
        memcpy(at + 8, each->message + 12, 4); /* the checksum in its header */
    }
    wire_part part = {asked, (size_t)n * WIRE_KEEP_BYTES};
    int status = link_ask(&s->link, WIRE_KEEP, &part, 1, WIRE_KEPT, now_ms() + p->options.timeout_ms);
    free(asked);
    if (status == BODHI_OK && s->link.in.size != (uint32_t)n) {
        status = bodhi_fail(BODHI_ERROR_PROTOCOL, "%s: an answer that does not fit the question", s->address);
    }
    for (int64_t i = 0; i < n && status == BODHI_OK; i++) {
        take_kept(p, s, s->link.in.body[i]);
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
            p->conflict = p->conflict || status == BODHI_ERROR_CONFLICT;
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
        bool conflict = p->conflict;
        if (!take_acks(p, i)) {
            if (!conflict) { /* else the first reason is the one to be told */
                take_reason(p, s);
            }
            if (!p->conflict) {
                resync(p, i); /* what it took before is not given to another */
            }
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

/* The server that a frame's number names, or the next that is connected, or can be now; -1: none. */
static int choose_server(bodhi_pusher *p, uint64_t number) {
    for (int tried = 0; tried < p->n_servers && !p->conflict; tried++) {
        int i = (int)((p->start + number + (uint64_t)tried) % (uint64_t)p->n_servers);
        server *s = &p->servers[i];
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
        int i = choose_server(p, p->waiting.first->number);
        if (i < 0) {
            return false;
        }
        give(p, slots_take(&p->waiting), i);
    }
    return true;
}

static int fail_conflict(const bodhi_pusher *p) {
    return bodhi_fail(BODHI_ERROR_CONFLICT, "%s",
                      p->reason[0] != '\0' ? p->reason : "another simulation has written to the dataset");
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
    while (!p->conflict && !(given && enough(p))) {
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
    return p->conflict ? fail_conflict(p) : BODHI_OK;
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
    free(p->identity);
    memset(p->key, 0, sizeof p->key);
    free(p);
}

static int by_address(const void *left, const void *right) {
    return strcmp(((const server *)left)->address, ((const server *)right)->address);
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
    qsort(p->servers, (size_t)n, sizeof *p->servers, by_address);
    return BODHI_OK;
}

/* Who pushes, unless it was told: the simulation of this directory, which a restart has in common with it. */
static int set_identity(bodhi_pusher *p, const char *identity) {
    p->identity = identity != NULL ? strdup(identity) : getcwd(NULL, 0);
    if (p->identity == NULL) {
        return identity != NULL ? bodhi_fail_memory() : bodhi_fail_system(errno, "getcwd", p->name);
    }
    return strlen(p->identity) <= WIRE_MAX_NAME
               ? BODHI_OK
               : bodhi_fail(BODHI_ERROR_ARGUMENT, "the identity has %zu bytes; it may have %d", strlen(p->identity),
                            WIRE_MAX_NAME);
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
    p->start = hash_bytes(dataset, strlen(dataset)); /* first frames of many datasets are spread */
    int status = set_identity(p, o->identity);
    o->identity = NULL; /* the caller's */
    if (status != BODHI_OK) {
        return status;
    }
    return o->key_file == NULL ? BODHI_OK : link_read_key(o->key_file, p->key, &p->key_bytes);
}

/* One server that answers is enough; of several errors the last one is told. All are asked whose the dataset is before
 * any is given a frame. */
static int connect_all(bodhi_pusher *p) {
    int any = BODHI_ERROR_UNREACHABLE;
    for (int i = 0; i < p->n_servers && !p->conflict; i++) {
        int status = connect_server(p, &p->servers[i]);
        any = any == BODHI_OK ? any : status;
    }
    return p->conflict ? fail_conflict(p) : any;
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
        status = connect_all(p);
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
