/* A server, who pushes to it, and ranks that push straight to the store. */
#include "../sockets.h"
#include "acting.h"

#include "base/io.h"

enum { PATIENCE_MS = 300 };

static void *run(void *server) {
    CHECK(bodhi_server_run(server) >= 0);
    return NULL;
}

void stop_server(void) {
    if (all.server != NULL) {
        CHECK(write(bodhi_server_wake(all.server), "x", 1) == 1);
        CHECK(pthread_join(all.thread, NULL) == 0);
        bodhi_server_close(all.server);
        (void)close(all.listener);
        all.server = NULL;
        disk_say("the server has ended");
    }
}

static bool have_server(void) {
    if (all.server != NULL) {
        return true;
    }
    all.listener = listen_at(all.socket_path, SOCK_NONBLOCK);
    bodhi_serve_options options = {
        .listener = all.listener, .batch_ms = 50, .quota = any(3) == 0 ? 200000 + any(400000) : 0};
    if (all.large) { /* its segments are small, and there is room for all */
        options.quota = 8000000;
    }
    if (bodhi_server_open(all.store_path, &options, &all.server) != BODHI_OK) {
        (void)close(all.listener);
        all.server = NULL;
        return false;
    }
    CHECK(pthread_create(&all.thread, NULL, run, all.server) == 0);
    return true;
}

/* What frames are pushed to: one that has an origin is refused. */
static uint32_t any_pushed(void) {
    return any(8) == 0 ? CACHED : any(3) == 0 && !all.large ? SLICES + any(RANKS) : PUSHED;
}

/* To the server, or if there is none to be had straight to the store. */
static int open_pusher(uint32_t dataset, bool straight, bodhi_push_options *options, bodhi_pusher **pusher) {
    const char *servers[1] = {all.socket_path};
    bodhi_slice_options slices = {
        .n_atoms = SLICED, .rank = dataset - SLICES, .store = straight ? all.store_path : NULL, .launch = ""};
    options->identity = identity;
    return dataset == PUSHED || dataset == CACHED
               ? bodhi_push_open(servers, 1, known[dataset].name, NULL, 0, options, pusher)
               : bodhi_push_open_slices(servers, straight ? 0 : 1, known[WHOLE].name, NULL, 0, options, &slices,
                                        pusher);
}

/* Of slices fewer, so that all ranks have pushed some frames. */
static uint32_t any_number(uint32_t dataset) {
    return any(dataset == PUSHED || dataset == CACHED ? FRAMES : FRAMES / 4);
}

static int push_one(bodhi_pusher *pusher, uint32_t dataset, int64_t number) {
    int64_t ids[SLICED];
    float rows[SLICED * 3];
    bodhi_frame frame = frame_of(dataset, number);
    if (frame.ids == NULL) {
        return bodhi_push(pusher, &frame);
    }
    int64_t turn = any((uint32_t)frame.n_atoms); /* as a rank has them, in any order */
    for (int64_t i = 0; i < frame.n_atoms; i++) {
        int64_t from = (i + turn) % frame.n_atoms;
        ids[i] = frame.ids[from];
        memcpy(rows + 3 * i, frame.positions + 3 * from, 3 * sizeof *rows);
    }
    frame.positions = rows;
    frame.velocities = frame.velocities == NULL ? NULL : rows;
    return bodhi_push_slice(pusher, &frame, ids);
}

void push_some(void) {
    uint32_t dataset = any_pushed();
    if (!have_dataset(dataset) || !have_server()) {
        return;
    }
    bodhi_push_options options = {.durable = any(4) > 0, .timeout_ms = PATIENCE_MS, .batch_bytes = 1 + any(20000)};
    bodhi_pusher *pusher;
    if (all.large) { /* batches that go beyond the end of a segment */
        options.batch_bytes = 400000;
        options.timeout_ms = 10 * PATIENCE_MS;
    }
    if (all.actions_to_room > 0) {
        options.timeout_ms = 20; /* it will be refused */
    }
    if (open_pusher(dataset, false, &options, &pusher) != BODHI_OK) {
        return;
    }
    uint64_t pushed = 0;
    int status = BODHI_OK;
    begin_promise(dataset);
    for (uint32_t n = all.large ? 20 : 1 + any(10); n > 0 && status == BODHI_OK; n--) {
        uint32_t number = any_number(dataset);
        status = push_one(pusher, dataset, number);
        disk_say("pushed %u to %u: %s", number, dataset, bodhi_status_name(status));
        pushed |= status == BODHI_OK ? UINT64_C(1) << number : 0;
    }
    status = status == BODHI_OK ? bodhi_push_flush(pusher) : status;
    if (status == BODHI_OK && options.durable) {
        require_pushed(BY_PUSHER, dataset, pushed);
    }
    bodhi_push_abandon(pusher);
    if (all.sync_fails && status != BODHI_OK) {
        all.sync_fails = false;
        stop_server();
    }
}

void close_rank(uint32_t rank) {
    straight_rank *one = &all.ranks[rank];
    bodhi_push_abandon(one->pusher);
    *one = (straight_rank){0};
}

/* Take what was acknowledged to a rank, batch by batch; after an error nothing more is of what was sent before. */
static void settle_rank(uint32_t rank, int status) {
    straight_rank *one = &all.ranks[rank];
    bodhi_push_facts facts;
    uint64_t kept = 0;
    bodhi_push_query(one->pusher, &facts);
    int64_t n = facts.acknowledged - one->acknowledged;
    CHECK(n >= 0 && n <= one->n_sent);
    for (int64_t i = 0; i < n; i++) {
        kept |= one->sent[i] < 0 ? 0 : UINT64_C(1) << one->sent[i];
    }
    one->acknowledged = facts.acknowledged;
    one->n_sent = status < 0 ? 0 : one->n_sent - n;
    memmove(one->sent, one->sent + n, (size_t)one->n_sent * sizeof *one->sent);
    if (n > 0 && one->durable) {
        begin_promise(SLICES + rank);
        require_pushed(BY_STRAIGHT, SLICES + rank, kept);
    }
    if (status < 0 && status != BODHI_ERROR_FULL) {
        close_rank(rank);
    }
}

void push_straight(void) {
    uint32_t rank = any(RANKS);
    straight_rank *one = &all.ranks[rank];
    if (one->pusher == NULL) {
        bodhi_push_options options = {.durable = any(4) > 0, .batch_bytes = 1 + any(20000)};
        *one = (straight_rank){.durable = options.durable != 0};
        if (!have_dataset(SLICES + rank) || open_pusher(SLICES + rank, true, &options, &one->pusher) != BODHI_OK) {
            one->pusher = NULL;
            return;
        }
    }
    int status = BODHI_OK;
    for (uint32_t n = 1 + any(10); n > 0 && status == BODHI_OK && one->n_sent < MOST_SENT; n--) {
        uint32_t number = any_number(SLICES + rank);
        status = push_one(one->pusher, SLICES + rank, number);
        disk_say("rank %u pushed %u: %s", rank, number, bodhi_status_name(status));
        one->sent[one->n_sent] = number;
        one->n_sent += status == BODHI_OK;
        settle_rank(rank, status);
    }
    if (status == BODHI_OK && any(3) > 0) {
        status = bodhi_push_flush(one->pusher);
        disk_say("rank %u flushed: %s", rank, bodhi_status_name(status));
        settle_rank(rank, status);
    }
    if (any(4) == 0) {
        close_rank(rank);
    }
}
