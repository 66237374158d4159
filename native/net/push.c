/* Pushing frames and slices to the servers of several nodes; the public functions are in bodhi.h.
 *
 * A frame is copied into a slot and given to the server that its number names, or to the next one that takes it: so who
 * pushes a frame of this number once more meets the one that is there. Each server has a thread, which sends it its
 * frames. A slot is free when a server has acknowledged it. What a server refuses, or has not acknowledged when it
 * breaks off or is late, goes to the next server, or to the same one when it is back: what it has, just as it is sent,
 * it acknowledges. So a frame is twice in the stores only if its server does not answer. */
#include "net/pusher.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/io.h"
#include "base/memory.h"
#include "base/status.h"
#include "base/threads.h"
#include "segments/record.h"

enum {
    MAX_IN_FLIGHT = 8192, /* frames */
    BATCHES_IN_FLIGHT = 4,
    DEFAULT_TIMEOUT_MS = 60000,
    OTHERS_MS = 1000, /* wait so long for the other servers when the first one has answered */
    MAX_SERVERS = 4096
};
#define DEFAULT_BATCH_BYTES (INT64_C(16) << 20)

/* --- Waiting ----------------------------------------------------------------------------------------------------- */

static int fail_conflict(const bodhi_pusher *p) {
    return bodhi_fail(BODHI_ERROR_CONFLICT, "%s",
                      p->reason[0] != '\0' ? p->reason : "another simulation has written to the dataset");
}

static int servers_up(const bodhi_pusher *p) {
    int up = 0;
    for (int i = 0; i < p->n_servers; i++) {
        up += p->servers[i].link.fd >= 0;
    }
    return up;
}

static int fail_nowhere(const bodhi_pusher *p) {
    long long seconds = (p->options.timeout_ms + 999) / 1000;
    if (p->refused != 0 && p->waiting.n > 0) {
        return bodhi_fail(p->refused, "no server takes frames (%s); %lld wait",
                          p->reason[0] != '\0' ? p->reason : bodhi_status_name(p->refused), (long long)p->waiting.n);
    }
    if (servers_up(p) == 0) {
        return bodhi_fail(BODHI_ERROR_UNREACHABLE, "none of %d servers answers; %lld frames are in flight",
                          p->n_servers, (long long)p->facts.in_flight);
    }
    return bodhi_fail(BODHI_ERROR_UNREACHABLE, "no server has acknowledged a frame for %lld s; %lld are in flight",
                      seconds, (long long)p->facts.in_flight);
}

/* Wait a moment for something to change; false if the caller is interrupted, who may push from what interrupts it. */
static bool await_change(bodhi_pusher *p) {
    enum { STEP_MS = 100 };
    struct timespec until;
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)STEP_MS * 1000 * 1000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    (void)pthread_cond_timedwait(&p->changed, &p->mutex, &until);
    pthread_mutex_unlock(&p->mutex);
    bool interrupted = p->options.interrupted != NULL && p->options.interrupted() != 0;
    pthread_mutex_lock(&p->mutex);
    return !interrupted;
}

/* Wait until `enough` says so, as long as bytes go or acknowledgements come. */
static int wait_until(bodhi_pusher *p, bool (*enough)(const bodhi_pusher *p)) {
    int64_t before = p->facts.acknowledged + p->moved;
    int64_t since = now_ms();
    servers_give(p);
    if (!enough(p) && servers_up(p) == 0) {
        servers_try(p);
    }
    while (!p->conflict && !enough(p)) {
        if (p->facts.acknowledged + p->moved != before) {
            before = p->facts.acknowledged + p->moved;
            since = now_ms();
        } else if (now_ms() - since >= p->options.timeout_ms) {
            return fail_nowhere(p);
        }
        servers_ask_for_acks(p);
        if (!await_change(p)) {
            return bodhi_fail(BODHI_ERROR_INTERRUPTED, "interrupted; %lld frames are in flight",
                              (long long)p->facts.in_flight);
        }
        servers_give(p);
    }
    return p->conflict ? fail_conflict(p) : BODHI_OK;
}

static bool has_room(const bodhi_pusher *p) {
    return p->facts.in_flight < MAX_IN_FLIGHT && (p->waiting.n == 0 || servers_up(p) > 0) &&
           (p->bytes < p->options.batch_bytes * BATCHES_IN_FLIGHT || p->facts.in_flight == 0);
}

static bool is_empty(const bodhi_pusher *p) {
    return p->facts.in_flight == 0;
}

static int push_to_servers(bodhi_pusher *pusher, const bodhi_frame *frame) {
    if (pusher == NULL || frame == NULL || frame->number < 0 || frame->number > BODHI_MAX_NUMBER ||
        frame->n_atoms < 1 || frame->positions == NULL || frame->n_atoms > (WIRE_MAX_FRAME - WIRE_FRAME_HEAD) / 40) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT, "a frame needs a number from 0 to %lld, 1 to %u atoms, and positions",
                          (long long)BODHI_MAX_NUMBER, (WIRE_MAX_FRAME - WIRE_FRAME_HEAD) / 40);
    }
    slot *s = slots_make(frame);
    if (s == NULL) {
        return bodhi_fail_memory();
    }
    pthread_mutex_lock(&pusher->mutex);
    int status = wait_until(pusher, has_room);
    if (status == BODHI_OK) {
        slots_append(&pusher->waiting, s);
        pusher->bytes += (int64_t)s->size;
        pusher->facts.in_flight++;
        servers_give(pusher); /* if none takes it, the next call waits for one */
    }
    pthread_mutex_unlock(&pusher->mutex);
    if (status != BODHI_OK) {
        free(s);
    }
    return status;
}

int bodhi_push(bodhi_pusher *pusher, const bodhi_frame *frame) {
    if (frame != NULL && pusher != NULL && (frame->ids != NULL || pusher->slices_of > 0)) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT, "slices are pushed by bodhi_push_slice(), whole frames by a pusher of "
                                                "bodhi_push_open()");
    }
    return push_to_servers(pusher, frame);
}

/* --- Slices ------------------------------------------------------------------------------------------------------- */

/* Put vectors in the order of the ids. */
static float *in_order(float *vectors, const id_order *order, float *out) {
    if (vectors == NULL || order->ascends) {
        return vectors;
    }
    id_order_rows(order, vectors, out);
    return out;
}

/* What of a slice is no number; NULL: nothing is. */
static const char *what_is_nan(const bodhi_frame *frame) {
    bool any = false;
    for (int64_t i = 0; i < 3 * frame->n_atoms; i++) {
        any |= isnan(frame->positions[i]);
    }
    return isnan(frame->time) ? "its time" : any ? "a position" : NULL;
}

int bodhi_push_slice(bodhi_pusher *pusher, const bodhi_frame *frame, const int64_t *ids) {
    if (pusher == NULL || pusher->slices_of == 0 || frame == NULL || frame->number < 0 ||
        frame->number > BODHI_MAX_NUMBER || frame->n_atoms < 0 || frame->n_atoms > pusher->slices_of ||
        (frame->n_atoms > 0 && (frame->positions == NULL || ids == NULL))) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT,
                          "a slice needs a pusher that was opened for slices, a number from 0 to %lld, and ids and "
                          "positions of as many atoms as a frame has, or fewer",
                          (long long)BODHI_MAX_NUMBER);
    }
    const char *nan = what_is_nan(frame);
    if (nan != NULL) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT, "the slice of frame %lld: %s is no number (NaN)",
                          (long long)frame->number, nan);
    }
    if (frame->n_atoms == 0) {
        return BODHI_OK; /* a rank without atoms adds nothing to the frame */
    }
    int64_t wrong;
    enum ids_order sorted = ids_sort(&pusher->order, ids, (size_t)frame->n_atoms, pusher->slices_of, &wrong);
    if (sorted == IDS_NO_MEMORY) {
        return bodhi_fail_memory();
    }
    if (sorted == IDS_WRONG) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT,
                          "atom %lld of the slice of frame %lld is there twice, or not one of 0 to %lld",
                          (long long)wrong, (long long)frame->number, (long long)pusher->slices_of - 1);
    }
    bodhi_frame slice = *frame;
    size_t n = (size_t)frame->n_atoms;
    if (!ARRAY_FIT(pusher->vectors, pusher->n_vectors, 9 * n)) {
        return bodhi_fail_memory();
    }
    float *vectors = pusher->vectors;
    slice.ids = pusher->order.sorted;
    slice.positions = in_order(frame->positions, &pusher->order, vectors);
    slice.velocities = in_order(frame->velocities, &pusher->order, vectors + 3 * n);
    slice.forces = in_order(frame->forces, &pusher->order, vectors + 6 * n);
    return pusher->direct.writer != NULL ? direct_push(pusher, &slice) : push_to_servers(pusher, &slice);
}

/* --- Flushing ---------------------------------------------------------------------------------------------------- */

int bodhi_push_flush(bodhi_pusher *pusher) {
    if (pusher == NULL) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT, "pusher must be given");
    }
    if (pusher->direct.writer != NULL) {
        return direct_flush(pusher);
    }
    pthread_mutex_lock(&pusher->mutex);
    int status = wait_until(pusher, is_empty);
    pthread_mutex_unlock(&pusher->mutex);
    return status;
}

void bodhi_push_query(const bodhi_pusher *pusher, bodhi_push_facts *facts) {
    bodhi_pusher *p = (bodhi_pusher *)(uintptr_t)pusher; /* its mutex is no part of what is told */
    pthread_mutex_lock(&p->mutex);
    *facts = p->facts;
    facts->servers_up = servers_up(p);
    pthread_mutex_unlock(&p->mutex);
}

/* --- Opening and closing ----------------------------------------------------------------------------------------- */

static int by_address(const void *left, const void *right) {
    return strcmp(((const server *)left)->address, ((const server *)right)->address);
}

static int make_servers(bodhi_pusher *p, const char *const *servers, int n) {
    p->servers = calloc((size_t)n, sizeof *p->servers);
    if (p->servers == NULL) {
        return bodhi_fail_memory();
    }
    p->n_servers = p->n_untried = n;
    for (int i = 0; i < n; i++) {
        p->servers[i].link.fd = p->servers[i].wake = -1;
    }
    for (int i = 0; i < n; i++) {
        server *s = &p->servers[i];
        s->pusher = p;
        s->address = servers[i] == NULL ? NULL : strdup(servers[i]);
        s->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (s->address == NULL || s->wake < 0) {
            return bodhi_fail(BODHI_ERROR_ARGUMENT, "server %d has no address, or memory or descriptors are out", i);
        }
    }
    qsort(p->servers, (size_t)n, sizeof *p->servers, by_address);
    return BODHI_OK;
}

/* Who pushes, unless it was told: the simulation of this directory, which a restart has in common with it. */
static int set_identity(bodhi_pusher *p, const char *identity) {
    size_t most = sizeof p->identity;
    if (identity == NULL) {
        return getcwd(p->identity, most) != NULL ? BODHI_OK : bodhi_fail_system(errno, "getcwd", ".");
    }
    int n = snprintf(p->identity, most, "%s", identity);
    return n >= 0 && (size_t)n < most
               ? BODHI_OK
               : bodhi_fail(BODHI_ERROR_ARGUMENT, "the identity has %d bytes; it may have %d", n, WIRE_MAX_NAME);
}

/* Connect to all servers. One that answers is enough: the others are waited for a moment, so that frames go to all from
 * the first on, and so that they can say whose the dataset is. Of several errors the last one is told. */
static int connect_all(bodhi_pusher *p) {
    int64_t begun = now_ms();
    int64_t until = begun + p->options.timeout_ms + OTHERS_MS; /* resolving a name may take any time */
    for (int i = 0; i < p->n_servers; i++) {
        if (!server_start(&p->servers[i])) {
            return bodhi_fail(BODHI_ERROR_MEMORY, "no thread to push to %s with", p->servers[i].address);
        }
    }
    while (!p->conflict && p->n_untried > 0 && now_ms() < until) {
        if (!await_change(p)) {
            return bodhi_fail(BODHI_ERROR_INTERRUPTED, "interrupted while connecting to servers");
        }
        until = servers_up(p) > 0 && begun + OTHERS_MS < until ? begun + OTHERS_MS : until;
    }
    if (p->conflict || servers_up(p) > 0) {
        return p->conflict ? fail_conflict(p) : BODHI_OK;
    }
    return p->dial_status != BODHI_OK ? bodhi_fail(p->dial_status, "%s", p->dial_message)
                                      : bodhi_fail(BODHI_ERROR_UNREACHABLE, "none of %d servers answers", p->n_servers);
}

static int open_servers(bodhi_pusher *p, const char *const *servers, int n) {
    const char *key_file = p->options.key_file;
    p->start = hash_bytes(p->name, strlen(p->name)); /* first frames of many datasets are spread */
    int status = key_file == NULL ? BODHI_OK : link_read_key(key_file, p->key, &p->key_bytes);
    status = status == BODHI_OK ? make_servers(p, servers, n) : status;
    if (status == BODHI_OK) {
        pthread_mutex_lock(&p->mutex);
        status = connect_all(p);
        pthread_mutex_unlock(&p->mutex);
    }
    return status;
}

/* Whether a store is not to be written to by this process, but maybe by its server. */
static bool is_forbidden(int status) {
    return status == BODHI_ERROR_UNSAFE || status == BODHI_ERROR_NETWORK || status == BODHI_ERROR_NOT_FOUND ||
           status == BODHI_ERROR_SYSTEM || status == BODHI_ERROR_VERSION;
}

/* Slices go to their store where that is allowed, else to servers, as frames do. */
static int open_slices(bodhi_pusher *p, const char *const *servers, int n, const bodhi_slice_options *slices) {
    p->slices_of = slices->n_atoms;
    int status = launch_name_slices(p, slices);
    if (status != BODHI_OK || slices->store == NULL) {
        return status == BODHI_OK ? open_servers(p, servers, n) : status;
    }
    status = direct_open(p, slices);
    return n > 0 && is_forbidden(status) ? open_servers(p, servers, n) : status;
}

/* Open a pusher of slices, or (NULL) of frames. */
static int open_pusher(const char *const *servers, int n, const char *dataset, const void *generation,
                       size_t generation_bytes, const bodhi_push_options *options, const bodhi_slice_options *slices,
                       bodhi_pusher **pusher) {
    bool has_store = slices != NULL && slices->store != NULL;
    if (pusher == NULL || n < (has_store ? 0 : 1) || n > MAX_SERVERS || (servers == NULL && n > 0) || dataset == NULL ||
        *dataset == '\0' || *dataset == '/' || strlen(dataset) > WIRE_MAX_NAME || generation_bytes > WIRE_MAX_NAME ||
        (generation == NULL && generation_bytes > 0)) {
        return bodhi_fail(
            BODHI_ERROR_ARGUMENT,
            "pushing needs 1 to %d servers, not %d, and a dataset's name of 1 to %d bytes that begins with no "
            "'/', as those of trajectories' files do",
            MAX_SERVERS, n, WIRE_MAX_NAME);
    }
    bodhi_pusher *p = pusher_new();
    if (p == NULL) {
        return bodhi_fail_memory();
    }
    p->options = options == NULL ? (bodhi_push_options){0} : *options;
    bodhi_push_options *o = &p->options;
    o->timeout_ms = o->timeout_ms <= 0 ? DEFAULT_TIMEOUT_MS : o->timeout_ms;
    o->batch_bytes = o->batch_bytes <= 0 ? DEFAULT_BATCH_BYTES : o->batch_bytes;
    p->open = (wire_open){.flags = WIRE_PUSHES | (o->durable != 0 ? (uint32_t)WIRE_DURABLE : 0U),
                          .name = p->name,
                          .identity = p->identity,
                          .generation = p->generation,
                          .generation_bytes = generation_bytes};
    memcpy(p->name, dataset, strlen(dataset) + 1);
    if (generation_bytes > 0) {
        memcpy(p->generation, generation, generation_bytes);
    }
    int status = set_identity(p, o->identity);
    if (status == BODHI_OK) {
        status = slices == NULL ? open_servers(p, servers, n) : open_slices(p, servers, n, slices);
    }
    if (status != BODHI_OK) {
        bodhi_push_abandon(p);
        return status;
    }
    o->key_file = o->identity = NULL; /* the caller's */
    *pusher = p;
    return BODHI_OK;
}

int bodhi_push_open(const char *const *servers, int n, const char *dataset, const void *generation,
                    size_t generation_bytes, const bodhi_push_options *options, bodhi_pusher **pusher) {
    return open_pusher(servers, n, dataset, generation, generation_bytes, options, NULL, pusher);
}

int bodhi_push_open_slices(const char *const *servers, int n, const char *dataset, const void *generation,
                           size_t generation_bytes, const bodhi_push_options *options,
                           const bodhi_slice_options *slices, bodhi_pusher **pusher) {
    if (slices == NULL || slices->n_atoms < 1 || slices->n_atoms > UINT32_MAX || slices->rank < 0) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT, "slices need 1 to %u atoms of a frame, and a rank from 0", UINT32_MAX);
    }
    return open_pusher(servers, n, dataset, generation, generation_bytes, options, slices, pusher);
}

/* Threads end by themselves; those that still connect to a server, soon. */
void bodhi_push_abandon(bodhi_pusher *pusher) {
    if (pusher == NULL) {
        return;
    }
    pthread_mutex_lock(&pusher->mutex);
    pusher->closing = true;
    for (int i = 0; i < pusher->n_servers; i++) {
        server *s = &pusher->servers[i];
        if (s->link.fd >= 0) {
            (void)shutdown(s->link.fd, SHUT_RDWR);
        }
        server_wake(s);
    }
    pusher_let_go(pusher);
}

int bodhi_push_close(bodhi_pusher *pusher) {
    if (pusher == NULL) {
        return BODHI_OK;
    }
    int status = bodhi_push_flush(pusher);
    bodhi_push_abandon(pusher);
    return status;
}
