/* Pushing frames to the servers of several nodes; the public functions are in bodhi.h.
 *
 * A frame is copied into a slot and sent to the server that its number names, or to the next one that answers: so who
 * pushes a frame of this number once more meets the one that is there. Its slot is free when a server has acknowledged
 * it. A server that breaks off or does not answer in time is asked over a new connection what it has: opening that
 * one ends the old one, so that the answer is final. What it has, just as it was sent, is acknowledged; what it has
 * not, or what nobody can be asked about, goes to the next server. So a frame is twice in the stores only if its server
 * could not be asked. Connecting and asking is a thread's (dial.c): a server that is dead keeps nobody waiting. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/io.h"
#include "base/status.h"
#include "net/dial.h"
#include "net/slots.h"
#include "segments/record.h"

enum {
    MAX_IN_FLIGHT = 8192, /* frames: as many as a HAVE may ask about, at least */
    BATCHES_IN_FLIGHT = 4,
    DEFAULT_TIMEOUT_MS = 60000,
    TRIES = 3,        /* a server is late after this part of the timeout: another may have its frames in time */
    OTHERS_MS = 1000, /* wait so long for the other servers when the first one has answered */
    STALLED_MS = 250, /* a server that takes no bytes for so long is left to itself */
    FIRST_PAUSE_MS = 1000,
    MAX_PAUSE_MS = 60000,
    MAX_SERVERS = 4096
};
#define DEFAULT_BATCH_BYTES (INT64_C(16) << 20)

typedef struct {
    char *address;
    wire_link link;      /* fd -1: not connected */
    dialling *dialling;  /* NULL: nobody connects to it now */
    bool refused_frames; /* it is asked what it has, and then left alone for a while */
    uint8_t token[WIRE_TOKEN];
    slot_list sent;   /* to it, and not acknowledged yet */
    const slot *out;  /* of these the last, which has not all gone yet; NULL: there is none */
    size_t out_done;  /* bytes of `out`, else of the FLUSH, that have gone */
    bool flush_due;   /* a FLUSH is to go behind it */
    int64_t moved_at; /* when bytes last went */
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
    int64_t moved;     /* bytes of frames sent for the first time */
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

static int64_t patience_of(const bodhi_pusher *p) {
    return p->options.timeout_ms / TRIES > 0 ? p->options.timeout_ms / TRIES : 1;
}

static void disconnect(server *s) {
    link_close(&s->link);
    s->asked_at = 0;
    s->unasked = 0;
    s->out = NULL;
    s->out_done = 0;
    s->flush_due = false;
}

/* Do not try a server again for a while. */
static void back_off(server *s) {
    disconnect(s);
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

/* What is asked about all that was sent to a server, as in a KEEP; NULL: memory is out. */
static unsigned char *questions_about(const server *s) {
    unsigned char *questions = calloc((size_t)s->sent.n + 1, WIRE_KEEP_BYTES);
    unsigned char *at = questions;
    for (const slot *each = s->sent.first; each != NULL && at != NULL; each = each->next) {
        wire_put64(at, each->number);
        memcpy(at + 8, each->message + 12, 4); /* the checksum in its header */
        at += WIRE_KEEP_BYTES;
    }
    return questions;
}

/* Begin to connect to a server; what was sent to it before is asked about, and goes nowhere else meanwhile. */
static void begin_dialling(bodhi_pusher *p, server *s, int64_t timeout_ms) {
    disconnect(s);
    unsigned char *questions = questions_about(s);
    dial_request request = {.address = s->address,
                            .key = p->key_bytes > 0 ? p->key : NULL,
                            .key_bytes = p->key_bytes,
                            .flags = WIRE_PUSHES | (p->options.durable != 0 ? (uint32_t)WIRE_DURABLE : 0U),
                            .token = s->token,
                            .name = p->name,
                            .generation = p->generation,
                            .generation_bytes = p->generation_bytes,
                            .identity = p->identity,
                            .asked = questions,
                            .n_asked = (size_t)s->sent.n,
                            .timeout_ms = timeout_ms};
    s->dialling = questions == NULL ? NULL : dial_begin(&request);
    if (s->dialling == NULL) {
        back_off(s);
        requeue_all(p, s);
    }
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

/* Take what came of connecting to a server, which has ended. */
static int end_dialling(bodhi_pusher *p, server *s) {
    unsigned char *kept;
    int status = dial_end(s->dialling, &s->link, &kept);
    int64_t n = status == BODHI_OK ? s->sent.n : 0;
    s->dialling = NULL;
    s->moved_at = now_ms();
    if (status == BODHI_ERROR_CONFLICT) {
        note_conflict(p, bodhi_message());
    }
    for (int64_t i = 0; i < n; i++) {
        take_kept(p, s, kept[i]);
    }
    free(kept);
    if (status != BODHI_OK || s->refused_frames) {
        back_off(s);
    }
    s->refused_frames = false;
    requeue_all(p, s);
    return status;
}

/* A server broke off or was too slow: ask it once more; what it does not have, or nobody knows of, is to be given
 * again. */
static void resync(bodhi_pusher *p, server *s) {
    begin_dialling(p, s, patience_of(p));
}

/* --- Sending ----------------------------------------------------------------------------------------------------- */

static bool is_sending(const server *s) {
    return s->out != NULL || s->flush_due;
}

/* Send what a server takes now. */
static void send_out(bodhi_pusher *p, server *s) {
    unsigned char flush[WIRE_HEADER];
    wire_header(flush, WIRE_FLUSH, NULL, 0);
    while (s->link.fd >= 0 && is_sending(s)) {
        const unsigned char *data = s->out != NULL ? s->out->message : flush;
        size_t size = s->out != NULL ? s->out->size : sizeof flush;
        ssize_t sent = link_send_some(&s->link, data + s->out_done, size - s->out_done);
        if (sent < 0) {
            resync(p, s);
        }
        if (sent <= 0) {
            return;
        }
        s->out_done += (size_t)sent;
        s->moved_at = now_ms();
        p->moved += s->out != NULL && !s->out->again ? sent : 0; /* what goes round and round is no progress */
        if (s->out_done < size) {
            continue;
        }
        s->out_done = 0;
        if (s->out != NULL) {
            s->out = NULL;
        } else {
            s->flush_due = false;
            s->asked_at = s->asked_at == 0 ? now_ms() : s->asked_at;
        }
    }
}

static void ask_for_acks(bodhi_pusher *p, server *s) {
    s->unasked = 0;
    s->flush_due = true;
    send_out(p, s);
}

/* --- Acknowledgements -------------------------------------------------------------------------------------------- */

/* Take an ACK. False: the server cannot store frames now. */
static bool take_acks(bodhi_pusher *p, server *s) {
    bool stores = true;
    for (uint32_t at = 0; at + WIRE_ACK_BYTES <= s->link.in.size; at += WIRE_ACK_BYTES) {
        uint64_t number;
        int32_t status;
        wire_parse_ack(s->link.in.body + at, &number, &status);
        slot *found = slots_take_number(&s->sent, number);
        if (found == NULL) {
            continue;
        }
        if (found == s->out) { /* it has not even gone */
            requeue(p, found);
            stores = false;
            break;
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
static void receive_acks(bodhi_pusher *p, server *s) {
    while (s->link.fd >= 0) {
        int status = link_receive(&s->link, 0);
        if (status == BODHI_END) {
            return;
        }
        if (status != BODHI_OK || s->link.in.verb != WIRE_ACK) {
            resync(p, s);
            return;
        }
        bool conflict = p->conflict;
        if (!take_acks(p, s)) {
            if (!conflict) { /* else the first reason is the one to be told */
                take_reason(p, s);
            }
            if (p->conflict) {
                back_off(s);
            } else {
                s->refused_frames = true;
                resync(p, s); /* what it took before is not given to another */
            }
        }
    }
}

/* Wait up to `wait_ms` until some server can be sent to, has sent something, or has been connected to. */
static void await_servers(const bodhi_pusher *p, int64_t wait_ms) {
    struct pollfd polled[64];
    nfds_t n = 0;
    for (int i = 0; i < p->n_servers && n < sizeof polled / sizeof *polled; i++) {
        const server *s = &p->servers[i];
        if (s->dialling != NULL) {
            polled[n++] = (struct pollfd){.fd = dial_descriptor(s->dialling), .events = POLLIN};
        } else if (s->link.fd >= 0 && s->sent.n > 0) {
            short events = (short)(is_sending(s) ? POLLIN | POLLOUT : POLLIN);
            polled[n++] = (struct pollfd){.fd = s->link.fd, .events = events};
        }
    }
    (void)bodhi_io.poll(polled, n, (int)wait_ms);
}

static bool is_late(const bodhi_pusher *p, const server *s, int64_t now) {
    return (s->asked_at != 0 && now - s->asked_at > patience_of(p)) ||
           (is_sending(s) && now - s->moved_at > patience_of(p));
}

/* Go on with all servers, waiting up to `wait_ms` for the first; resync with those that are late. */
static void serve_all(bodhi_pusher *p, int64_t wait_ms) {
    await_servers(p, wait_ms);
    int64_t now = now_ms();
    for (int i = 0; i < p->n_servers; i++) {
        server *s = &p->servers[i];
        if (s->dialling != NULL && dial_has_ended(s->dialling)) {
            (void)end_dialling(p, s);
        }
        receive_acks(p, s);
        send_out(p, s);
        if (s->link.fd >= 0 && is_late(p, s, now)) {
            resync(p, s);
        }
    }
}

/* --- Giving ------------------------------------------------------------------------------------------------------ */

/* The server that a frame's number names, or the next one that takes it; NULL: none takes it now, or it is to wait for
 * one that is busy with the frame before. Those that may be tried again are connected to. */
static server *choose_server(bodhi_pusher *p, uint64_t number) {
    for (int tried = 0; tried < p->n_servers && !p->conflict; tried++) {
        server *s = &p->servers[(p->start + number + (uint64_t)tried) % (uint64_t)p->n_servers];
        if (s->link.fd >= 0 && (!is_sending(s) || s->moved_at > now_ms() - STALLED_MS)) {
            return is_sending(s) ? NULL : s;
        }
        if (s->link.fd < 0 && s->dialling == NULL && now_ms() >= s->retry_at) {
            begin_dialling(p, s, patience_of(p));
        }
    }
    return NULL;
}

static void give(bodhi_pusher *p, slot *given, server *to) {
    slots_append(&to->sent, given);
    p->facts.given_again += given->again;
    to->out = given;
    to->moved_at = now_ms();
    to->unasked += (int64_t)given->size;
    if (to->unasked >= p->options.batch_bytes) {
        ask_for_acks(p, to);
    } else {
        send_out(p, to);
    }
}

/* Give what waits to servers, until nothing waits or none takes it. */
static bool give_waiting(bodhi_pusher *p) {
    while (p->waiting.n > 0) {
        server *to = choose_server(p, p->waiting.first->number);
        if (to == NULL) {
            return false;
        }
        give(p, slots_take(&p->waiting), to);
    }
    return true;
}

static int fail_conflict(const bodhi_pusher *p) {
    return bodhi_fail(BODHI_ERROR_CONFLICT, "%s",
                      p->reason[0] != '\0' ? p->reason : "another simulation has written to the dataset");
}

/* Whether bytes are on their way to a server that takes them. */
static bool is_flowing(const bodhi_pusher *p) {
    int64_t since = now_ms() - STALLED_MS;
    bool flows = false;
    for (int i = 0; i < p->n_servers; i++) {
        const server *s = &p->servers[i];
        flows = flows || (s->link.fd >= 0 && is_sending(s) && s->moved_at > since);
    }
    return flows;
}

static int fail_nowhere(const bodhi_pusher *p) {
    long long seconds = (p->options.timeout_ms + 999) / 1000;
    if (p->refused != 0 && p->waiting.n > 0) {
        return bodhi_fail(p->refused, "no server takes frames (%s); %lld wait",
                          p->reason[0] != '\0' ? p->reason : bodhi_status_name(p->refused), (long long)p->waiting.n);
    }
    bodhi_push_facts facts;
    bodhi_push_query(p, &facts);
    if (facts.servers_up == 0) {
        return bodhi_fail(BODHI_ERROR_UNREACHABLE, "none of %d servers answers; %lld frames are in flight",
                          p->n_servers, (long long)p->facts.in_flight);
    }
    return bodhi_fail(BODHI_ERROR_UNREACHABLE, "no server has acknowledged a frame for %lld s; %lld are in flight",
                      seconds, (long long)p->facts.in_flight);
}

static bool is_interrupted(const bodhi_pusher *p) {
    return p->options.interrupted != NULL && p->options.interrupted() != 0;
}

static void ask_all_for_acks(bodhi_pusher *p) {
    for (int i = 0; i < p->n_servers; i++) {
        server *s = &p->servers[i];
        if (s->link.fd >= 0 && s->sent.n > 0 && s->unasked > 0) {
            ask_for_acks(p, s);
        }
    }
}

/* Wait until `enough` says so, as long as bytes go or acknowledgements come. */
static int wait_until(bodhi_pusher *p, bool (*enough)(const bodhi_pusher *p), bool ask) {
    enum { STEP_MS = 100 };
    int64_t before = p->facts.acknowledged + p->moved;
    int64_t since = now_ms();
    serve_all(p, 0);
    bool given = give_waiting(p);
    while (!p->conflict && !(given && enough(p))) {
        if (p->facts.acknowledged + p->moved != before) {
            before = p->facts.acknowledged + p->moved;
            since = now_ms();
        } else if (now_ms() - since >= p->options.timeout_ms) {
            return fail_nowhere(p);
        }
        if (ask) {
            ask_all_for_acks(p);
        }
        serve_all(p, STEP_MS);
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
    int64_t until = now_ms() + patience_of(pusher);
    while (is_flowing(pusher) && now_ms() < until) { /* the caller may not come again for long */
        serve_all(pusher, STALLED_MS);
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
        if (p->servers[i].dialling != NULL) {
            dial_abandon(p->servers[i].dialling);
        }
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
        p->servers[i].link = (wire_link){.fd = -1};
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

/* Connect to all servers. One that answers is enough: the others are waited for a moment, so that frames go to all from
 * the first on, and so that they can say whose the dataset is. Of several errors the last one is told. */
static int connect_all(bodhi_pusher *p) {
    int64_t begun = now_ms();
    int64_t until = begun + p->options.timeout_ms + OTHERS_MS; /* resolving a name may take any time */
    int status = bodhi_fail(BODHI_ERROR_MEMORY, "no memory, or no thread to connect with");
    int up = 0;
    for (int i = 0; i < p->n_servers; i++) {
        begin_dialling(p, &p->servers[i], p->options.timeout_ms);
    }
    for (int n_dialling = 1; n_dialling > 0 && now_ms() < until && !p->conflict;) {
        n_dialling = 0;
        for (int i = 0; i < p->n_servers; i++) {
            server *s = &p->servers[i];
            if (s->dialling != NULL && dial_has_ended(s->dialling)) {
                int ended = end_dialling(p, s);
                status = ended == BODHI_OK ? status : ended;
                up += ended == BODHI_OK;
            }
            n_dialling += s->dialling != NULL;
        }
        if (is_interrupted(p)) {
            return bodhi_fail(BODHI_ERROR_INTERRUPTED, "interrupted while connecting to servers");
        }
        until = up > 0 && begun + OTHERS_MS < until ? begun + OTHERS_MS : until;
        if (n_dialling > 0 && now_ms() < until) {
            await_servers(p, OTHERS_MS / 4);
        }
    }
    if (up > 0 || p->conflict) {
        return p->conflict ? fail_conflict(p) : BODHI_OK;
    }
    return now_ms() < until ? status : bodhi_fail(BODHI_ERROR_UNREACHABLE, "none of %d servers answers", p->n_servers);
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
