/* The event loop of the server: who comes in, what epoll tells, and when time is up. */
#include "server/serve.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/io.h"
#include "base/status.h"
#include "base/threads.h"
#include "server/server.h"

enum {
    TICK_MS = 200,   /* deadlines are looked at so often */
    CROWDED_MS = 20, /* who waits for memory is looked at so often */
    DEFAULT_CONNECTIONS = 4096,
    MAX_CONNECTIONS = 1 << 16,
    N_EVENTS = 64
};
#define DEFAULT_MEMORY (INT64_C(512) << 20)

/* --- Coming in --------------------------------------------------------------------------------------------------- */

/* The user of this machine at the other end, and what that user may do; 0: nothing. */
static unsigned rights_at(const bodhi_server *server, int fd) {
    struct ucred peer = {0};
    socklen_t size = sizeof peer;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
        return 0;
    }
    if (peer.uid == geteuid()) {
        return RIGHT_PUSH | RIGHT_READ;
    }
    for (int64_t i = 0; i < server->options.n_allowed; i++) {
        if (server->options.allowed[i] == peer.uid) {
            return RIGHT_READ;
        }
    }
    return 0;
}

/* Take up who has connected; who is left, for want of descriptors too, has its turn at the next tick. */
static void accept_from(bodhi_server *server, int listener, bool remote) {
    for (int i = 0; i < N_EVENTS; i++) {
        int fd = bodhi_io.accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            return;
        }
        unsigned rights = remote ? 0 : rights_at(server, fd);
        if (remote) {
            link_keep_alive(fd);
        }
        if (remote || rights != 0) {
            connection_add(server, fd, rights, remote);
        } else {
            connection_refuse(server, fd, remote, BODHI_ERROR_UNSAFE, "this server does not serve this user");
        }
    }
}

static void accept_all(bodhi_server *server) {
    accept_from(server, server->options.listener, false);
    if (server->options.key != NULL) {
        accept_from(server, server->options.remote, true);
    }
}

/* --- The loop ---------------------------------------------------------------------------------------------------- */

/* Dropped connections end their turn and let go of their dataset. */
static void let_go(bodhi_server *server, connection *c) {
    turn_end(server, c);
    if (c->dataset != NULL) {
        datasets_release(server, c->dataset);
        c->dataset = NULL;
    }
}

/* Look at every deadline, and have batches acknowledged that are due. */
static void tick(bodhi_server *server) {
    int64_t now = now_ms();
    for (open_dataset *d = server->datasets; d != NULL; d = d->next) {
        if (d->unflushed_since != 0 && now >= d->unflushed_since + server->options.batch_ms) {
            datasets_flush(d);
        }
    }
    turn_tick(server, now);
    connections_tick(server);
    accept_all(server);
}

/* Empty a pipe; true if there was something in it. */
static bool drain(const int ends[2]) {
    char bytes[64];
    bool any = false;
    while (read(ends[0], bytes, sizeof bytes) > 0) {
        any = true;
    }
    return any;
}

static void handle(bodhi_server *server, const struct epoll_event *event) {
    uint32_t serial = (uint32_t)(event->data.u64 >> 32);
    if (serial == EVENT_LISTENER) {
        accept_all(server);
    } else if (serial == EVENT_INGESTED) {
        (void)drain(server->pipes[EVENT_INGESTED]);
        answer_done(server);
    } else if (serial >= FIRST_SERIAL) {
        connection *c = &server->connections[(uint32_t)event->data.u64];
        if (c->fd >= 0 && c->serial == serial) { /* else it was closed since epoll told */
            connection_event(server, c, event->events);
        }
    }
}

int bodhi_server_run(bodhi_server *server) {
    struct epoll_event events[N_EVENTS];
    int64_t next_tick = now_ms() + TICK_MS;
    for (;;) {
        int64_t left = next_tick - now_ms();
        left = is_crowded(server) && left > CROWDED_MS ? CROWDED_MS : left;
        int n = bodhi_io.epoll_wait(server->epoll, events, N_EVENTS, left > 0 ? (int)left : 0);
        if (n < 0 && errno != EINTR) {
            return bodhi_fail_system(errno, "epoll_wait", "server");
        }
        for (int i = 0; i < n; i++) {
            handle(server, &events[i]);
        }
        if (now_ms() >= next_tick) {
            tick(server);
            next_tick = now_ms() + TICK_MS;
        }
        connections_update(server);
        if (drain(server->pipes[EVENT_WAKE])) {
            return BODHI_OK;
        }
    }
}

/* --- Opening and closing ----------------------------------------------------------------------------------------- */

/* Have epoll tell of a pipe, or once of each who connects. */
static bool watch(const bodhi_server *server, int fd, uint32_t serial) {
    uint32_t once = serial >= N_PIPES ? EPOLLET : 0U;
    struct epoll_event event = {.events = EPOLLIN | once, .data.u64 = (uint64_t)serial << 32};
    return bodhi_io.epoll_ctl(server->epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

static bool open_descriptors(bodhi_server *server) {
    int listener = server->options.listener;
    server->epoll = epoll_create1(EPOLL_CLOEXEC);
    bool open = server->epoll >= 0 && (listener < 0 || watch(server, listener, EVENT_LISTENER));
    open = open && (server->options.key == NULL || watch(server, server->options.remote, EVENT_LISTENER));
    for (uint32_t i = 0; i < N_PIPES && open; i++) {
        open = pipe2(server->pipes[i], O_CLOEXEC | O_NONBLOCK) == 0 && watch(server, server->pipes[i][0], i);
    }
    return open;
}

static void choose_defaults(bodhi_serve_options *o) {
    o->max_connections = o->max_connections <= 0 ? DEFAULT_CONNECTIONS : o->max_connections;
    o->max_connections = o->max_connections > MAX_CONNECTIONS ? MAX_CONNECTIONS : o->max_connections;
    o->memory = o->memory <= 0 ? DEFAULT_MEMORY : o->memory;
    o->message_ms = o->message_ms <= 0 ? 30000 : o->message_ms;
    o->idle_ms = o->idle_ms <= 0 ? 3600 * 1000 : o->idle_ms;
    o->batch_ms = o->batch_ms <= 0 ? 1000 : o->batch_ms;
}

static int make_server(bodhi_server *server, const char *directory) {
    server->connections = calloc((size_t)server->options.max_connections, sizeof *server->connections);
    if (server->connections == NULL) {
        return bodhi_fail_memory();
    }
    server->counters[COUNT_PID] = (uint64_t)getpid();
    server->counters[COUNT_STARTED] = (uint64_t)time(NULL);
    server->counters[COUNT_MAX_CONNECTIONS] = (uint64_t)server->options.max_connections;
    server->counters[COUNT_SERIALIZED] = server->options.serialize_reads != 0;
    int status = bodhi_open(directory, BODHI_CREATE, &server->store);
    if (status == BODHI_OK) {
        bodhi_store_set_quota(server->store, server->options.quota);
        status = bodhi_open(directory, BODHI_READ_ONLY, &server->looked_at);
    }
    if (status == BODHI_OK && !open_descriptors(server)) {
        status = bodhi_fail_system(errno, "epoll", directory);
    }
    return status;
}

int bodhi_server_open(const char *directory, const bodhi_serve_options *options, bodhi_server **server) {
    bodhi_server *opened = calloc(1, sizeof *opened);
    if (opened == NULL) {
        return bodhi_fail_memory();
    }
    opened->options = *options;
    opened->on_message = answer;
    opened->on_drop = let_go;
    opened->epoll = -1;
    memset(opened->pipes, -1, sizeof opened->pipes);
    choose_defaults(&opened->options);
    int status = make_server(opened, directory);
    if (status != BODHI_OK) {
        bodhi_server_close(opened);
        return status;
    }
    *server = opened;
    return BODHI_OK;
}

int bodhi_server_wake(const bodhi_server *server) {
    return server->pipes[EVENT_WAKE][1];
}

/* Write and acknowledge what was pushed. */
static void finish_ingest(bodhi_server *server) {
    for (open_dataset *d = server->datasets; d != NULL; d = d->next) {
        datasets_flush(d);
        if (d->ingest != NULL) {
            ingest_finish(d->ingest);
        }
    }
    answer_done(server);
}

/* Send what goes out at once, then close. */
static void close_connections(bodhi_server *server) {
    for (int i = 0; i < server->n_slots; i++) {
        connection *c = &server->connections[i];
        c->turn = TURN_NONE; /* nobody's turn comes any more */
        if (c->fd >= 0) {
            (void)connection_send(c);
            connection_drop(server, c);
        }
    }
}

void bodhi_server_close(bodhi_server *server) {
    if (server == NULL) {
        return;
    }
    finish_ingest(server);
    close_connections(server);
    datasets_close_all(server);
    for (int i = 0; i < N_PIPES; i++) {
        io_drop(server->pipes[i][0]);
        io_drop(server->pipes[i][1]);
    }
    io_drop(server->epoll);
    bodhi_close(server->looked_at);
    bodhi_close(server->store);
    free(server->connections);
    free(server);
}
