/* Pushing frames to the servers of several nodes; the public functions are in bodhi.h.
 *
 * A frame is copied into a slot and sent to the server that its number names, or to the next one that answers: so who
 * pushes a frame of this number once more meets the one that is there. Its slot is free when a server has acknowledged
 * it. A server that breaks off or does not answer in time gets all once more that it has not acknowledged, over a new
 * connection, which ends the old one: what it has, just as it is sent, it acknowledges. Only what it refuses, or leaves
 * unanswered once more, goes to the next server. So a frame is twice in the stores only if its server does not answer.
 * Connecting is a thread's (connect_async.c): a server that is dead keeps nobody waiting. */
#include "net/pushing/pusher.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/io.h"
#include "base/status.h"
#include "segments/record.h"

enum {
    MAX_IN_FLIGHT = 8192, /* frames */
    BATCHES_IN_FLIGHT = 4,
    DEFAULT_TIMEOUT_MS = 60000,
    OTHERS_MS = 1000, /* wait so long for the other servers when the first one has answered */
    MAX_SERVERS = 4096
};
#define DEFAULT_BATCH_BYTES (INT64_C(16) << 20)

/* --- Giving ------------------------------------------------------------------------------------------------------ */

/* The server that a frame's number names, or the next one that takes it; NULL: none takes it now, or it is to wait for
 * one that is busy with the frame before. Those that may be tried again are connected to. */
static server *choose_server(bodhi_pusher *p, uint64_t number) {
    for (int tried = 0; tried < p->n_servers && !p->conflict; tried++) {
        server *s = &p->servers[(p->start + number + (uint64_t)tried) % (uint64_t)p->n_servers];
        if (s->link.fd >= 0 && !s->refuses && (!server_is_sending(s) || s->moved_at > now_ms() - STALLED_MS)) {
            return server_is_sending(s) ? NULL : s;
        }
        if (s->link.fd < 0 && s->dialling == NULL && now_ms() >= s->retry_at) {
            server_begin_dialling(p, s, patience_of(p));
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
        server_ask_for_acks(p, to);
    } else {
        server_send(p, to);
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
        flows = flows || (s->link.fd >= 0 && server_is_sending(s) && s->moved_at > since);
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
            server_ask_for_acks(p, s);
        }
    }
}

/* Wait until `enough` says so, as long as bytes go or acknowledgements come. */
static int wait_until(bodhi_pusher *p, bool (*enough)(const bodhi_pusher *p), bool ask) {
    enum { STEP_MS = 100 };
    int64_t before = p->facts.acknowledged + p->moved;
    int64_t since = now_ms();
    servers_go_on(p, 0);
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
        servers_go_on(p, STEP_MS);
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

int pusher_push(bodhi_pusher *pusher, const bodhi_frame *frame) {
    if (pusher == NULL || frame == NULL || frame->number < 0 || frame->number > BODHI_MAX_NUMBER ||
        frame->n_atoms < 1 || frame->positions == NULL || frame->n_atoms > (WIRE_MAX_FRAME - WIRE_FRAME_HEAD) / 40) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT, "a frame needs a number from 0 to %lld, 1 to %u atoms, and positions",
                          (long long)BODHI_MAX_NUMBER, (WIRE_MAX_FRAME - WIRE_FRAME_HEAD) / 40);
    }
    int status = wait_until(pusher, has_room, !has_room(pusher));
    if (status != BODHI_OK) {
        return status;
    }
    slot *s = slots_make(frame);
    if (s == NULL) {
        return bodhi_fail_memory();
    }
    slots_append(&pusher->waiting, s);
    pusher->bytes += (int64_t)s->size;
    pusher->facts.in_flight++;
    (void)give_waiting(pusher); /* if none takes it, the next call waits for one */
    int64_t until = now_ms() + patience_of(pusher);
    while (is_flowing(pusher) && now_ms() < until) { /* the caller may not come again for long */
        servers_go_on(pusher, STALLED_MS);
    }
    return BODHI_OK;
}

int bodhi_push(bodhi_pusher *pusher, const bodhi_frame *frame) {
    if (frame != NULL && pusher != NULL && (frame->ids != NULL || pusher->slices_of > 0)) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT, "slices are pushed by bodhi_push_slice(), whole frames by a pusher of "
                                                "bodhi_push_open()");
    }
    return pusher_push(pusher, frame);
}

int bodhi_push_flush(bodhi_pusher *pusher) {
    if (pusher == NULL) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT, "pusher must be given");
    }
    return pusher->straight != NULL ? straight_flush(pusher->straight) : wait_until(pusher, is_empty, true);
}

void bodhi_push_query(const bodhi_pusher *pusher, bodhi_push_facts *facts) {
    if (pusher->straight != NULL) {
        straight_query(pusher->straight, facts);
        return;
    }
    *facts = pusher->facts;
    facts->servers_up = 0;
    for (int i = 0; i < pusher->n_servers; i++) {
        facts->servers_up += pusher->servers[i].link.fd >= 0;
    }
}

/* --- Opening and closing ----------------------------------------------------------------------------------------- */

static void free_pusher(bodhi_pusher *p) {
    straight_close(p->straight);
    id_order_free(&p->scratch.order);
    free(p->scratch.vectors);
    for (int i = 0; p->servers != NULL && i < p->n_servers; i++) {
        if (p->servers[i].dialling != NULL) {
            dial_abandon(p->servers[i].dialling);
        }
        link_close(&p->servers[i].link);
        slots_free(&p->servers[i].sent);
        free(p->servers[i].address);
    }
    slots_free(&p->waiting);
    free(p->servers);
    free(p->polled);
    explicit_bzero(p->key, sizeof p->key);
    free(p);
}

static int by_address(const void *left, const void *right) {
    return strcmp(((const server *)left)->address, ((const server *)right)->address);
}

static int make_servers(bodhi_pusher *p, const char *const *servers, int n) {
    p->servers = calloc((size_t)n, sizeof *p->servers);
    p->polled = calloc((size_t)n, sizeof *p->polled);
    if (p->servers == NULL || p->polled == NULL) {
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
int pusher_set_identity(bodhi_pusher *p, const char *identity) {
    size_t most = sizeof p->open.identity;
    if (identity == NULL) {
        return getcwd(p->open.identity, most) != NULL ? BODHI_OK : bodhi_fail_system(errno, "getcwd", ".");
    }
    int n = snprintf(p->open.identity, most, "%s", identity);
    return n >= 0 && (size_t)n < most
               ? BODHI_OK
               : bodhi_fail(BODHI_ERROR_ARGUMENT, "the identity has %d bytes; it may have %d", n, WIRE_MAX_NAME);
}

static int make_pusher(bodhi_pusher *p, const char *dataset, const void *generation, size_t generation_bytes) {
    bodhi_push_options *o = &p->options;
    o->timeout_ms = o->timeout_ms <= 0 ? DEFAULT_TIMEOUT_MS : o->timeout_ms;
    o->batch_bytes = o->batch_bytes <= 0 ? DEFAULT_BATCH_BYTES : o->batch_bytes;
    p->open.flags = WIRE_PUSHES | (o->durable != 0 ? (uint32_t)WIRE_DURABLE : 0U);
    memcpy(p->open.name, dataset, strlen(dataset) + 1);
    if (generation_bytes > 0) {
        memcpy(p->open.generation, generation, generation_bytes);
    }
    p->open.generation_bytes = generation_bytes;
    p->start = hash_bytes(dataset, strlen(dataset)); /* first frames of many datasets are spread */
    int status = pusher_set_identity(p, o->identity);
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
        server_begin_dialling(p, &p->servers[i], p->options.timeout_ms);
    }
    for (int n_dialling = 1; n_dialling > 0 && now_ms() < until && !p->conflict;) {
        n_dialling = 0;
        for (int i = 0; i < p->n_servers; i++) {
            server *s = &p->servers[i];
            if (s->dialling != NULL && dial_has_ended(s->dialling)) {
                int ended = server_end_dialling(p, s);
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
            servers_await(p, OTHERS_MS / 4);
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
        *dataset == '/' || strlen(dataset) > WIRE_MAX_NAME || generation_bytes > WIRE_MAX_NAME ||
        (generation == NULL && generation_bytes > 0)) {
        return bodhi_fail(
            BODHI_ERROR_ARGUMENT,
            "pushing needs 1 to %d servers, not %d, and a dataset's name of 1 to %d bytes that begins with no "
            "'/', as those of trajectories' files do",
            MAX_SERVERS, n, WIRE_MAX_NAME);
    }
    bodhi_pusher *p = calloc(1, sizeof *p);
    if (p == NULL) {
        return bodhi_fail_memory();
    }
    p->options = options == NULL ? (bodhi_push_options){0} : *options;
    int status = make_pusher(p, dataset, generation, generation_bytes);
    status = status == BODHI_OK ? make_servers(p, servers, n) : status;
    status = status == BODHI_OK ? connect_all(p) : status;
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
