/* The event loop of the server: connections, their bytes and their deadlines. What messages mean is answer.c's. */
#include "serve.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "answer.h"
#include "dataset.h"
#include "io.h"
#include "status.h"

enum {
    TURN_BYTES = 8 << 20,    /* read from one connection before the next has its turn */
    OUTPUT_ENOUGH = 1 << 20, /* output that waits stops us from reading more requests */
    GREETING_MS = 10000,     /* for the first message */
    SHUT_MS = 2000,          /* for the other side to close after an error */
    TICK_MS = 200,           /* deadlines are looked at so often */
    DEFAULT_CONNECTIONS = 256,
    MAX_CONNECTIONS = 4096,
    N_EVENTS = 64
};

/* What epoll tells of besides connections, whose serial is above these. */
enum { EVENT_WAKE = 0, EVENT_ADMITTED = 1, EVENT_LISTENER = 2, FIRST_SERIAL = 3 };

int64_t now_ms(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* --- Output ------------------------------------------------------------------------------------------------------ */

unsigned char *output_body(connection *c, size_t size) {
    size_t needed = c->n_out + WIRE_HEADER + size;
    if (needed > c->out_capacity) {
        unsigned char *grown = realloc(c->out, needed * 2);
        if (grown == NULL) {
            return NULL;
        }
        c->out = grown;
        c->out_capacity = needed * 2;
    }
    return c->out + c->n_out + WIRE_HEADER;
}

void output_done(connection *c, enum wire_verb verb, size_t size) {
    wire_part part = {.data = c->out + c->n_out + WIRE_HEADER, .size = size};
    wire_header(c->out + c->n_out, verb, &part, 1);
    c->n_out += WIRE_HEADER + size;
}

static void close_descriptors(connection *c) {
    while (c->n_descriptors > 0) {
        (void)io_close(c->descriptors[--c->n_descriptors]);
    }
}

/* Send what can be sent now, up to the byte that descriptors go with, or these with the rest. -1 and errno. */
static ssize_t send_some(connection *c) {
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int) * WIRE_MAX_SEGMENTS)];
    } control = {0};
    struct iovec part = {.iov_base = c->out + c->out_sent, .iov_len = c->n_out - c->out_sent};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    bool with = c->n_descriptors > 0 && c->out_sent == c->descriptors_at;
    if (c->n_descriptors > 0 && !with) {
        part.iov_len = c->descriptors_at - c->out_sent;
    }
    if (with) {
        size_t size = sizeof(int) * (size_t)c->n_descriptors;
        message.msg_control = &control;
        message.msg_controllen = CMSG_SPACE(size);
        struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
        *rights = (struct cmsghdr){.cmsg_len = CMSG_LEN(size), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(rights), c->descriptors, size);
    }
    ssize_t sent = sendmsg(c->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0 && with) {
        close_descriptors(c);
    }
    return sent;
}

/* False: the connection is broken. */
static bool send_output(const bodhi_server *server, connection *c) {
    while (c->out_sent < c->n_out) {
        ssize_t sent = send_some(c);
        if (sent < 0 && errno == EINTR) {
            continue;
        }
        if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            c->out_deadline = c->out_deadline == 0 ? now_ms() + server->options.message_ms : c->out_deadline;
            return true;
        }
        if (sent <= 0) {
            return false;
        }
        c->out_sent += (size_t)sent;
        c->out_deadline = 0;
    }
    c->n_out = c->out_sent = 0;
    c->out_deadline = 0;
    return true;
}

/* --- Connections ------------------------------------------------------------------------------------------------- */

void drop(bodhi_server *server, connection *c) {
    (void)epoll_ctl(server->epoll, EPOLL_CTL_DEL, c->fd, NULL);
    (void)io_close(c->fd);
    c->fd = -1;
    close_descriptors(c);
    wire_free(&c->in);
    free(c->out);
    free(c->pushed);
    free(c->wanted);
    c->out = NULL;
    c->pushed = NULL;
    c->wanted = NULL;
    c->turn = TURN_NONE;
    if (c->dataset != NULL) {
        if (c->n_pushed > 0) {
            acknowledge(server, c->dataset); /* kept for those who ask later */
        }
        held_release(server, c->dataset);
        c->dataset = NULL;
    }
    if (server->reading == c) {
        end_turn(server);
    }
}

/* Ask epoll for what this connection waits for. */
static void ask_events(const bodhi_server *server, connection *c) {
    bool full = c->n_out - c->out_sent >= OUTPUT_ENOUGH;
    bool reads = c->shut || (!c->ending && !full && c->turn != TURN_WAITING && c->n_descriptors == 0);
    uint32_t events = (reads ? EPOLLIN : 0U) | (c->out_sent < c->n_out ? EPOLLOUT : 0U);
    if (events != c->events) {
        uint64_t slot = (uint64_t)(c - server->connections);
        struct epoll_event event = {.events = events, .data.u64 = (uint64_t)c->serial << 32 | slot};
        (void)epoll_ctl(server->epoll, EPOLL_CTL_MOD, c->fd, &event);
        c->events = events;
    }
}

/* Send what waits; close what has ended. */
static void settle(bodhi_server *server, connection *c) {
    if (!send_output(server, c)) {
        drop(server, c);
        return;
    }
    if (c->ending && c->n_out == 0 && !c->shut) {
        /* Closing with unread bytes would reset the connection and lose the error on its way. */
        (void)shutdown(c->fd, SHUT_WR);
        c->shut = true;
        c->in_deadline = now_ms() + SHUT_MS;
    }
    ask_events(server, c);
}

static connection *free_slot(bodhi_server *server) {
    for (int i = 0; i < server->n_slots; i++) {
        if (server->connections[i].fd < 0) {
            return &server->connections[i];
        }
    }
    return NULL;
}

static void refuse(bodhi_server *server, int fd, int status, const char *text) {
    connection told = {.fd = fd};
    (void)answer_error(&told, status, text);
    (void)send_output(server, &told);
    free(told.out);
    (void)io_close(fd);
    server->counters[COUNT_REFUSED]++;
}

static void add_connection(bodhi_server *server, int fd, unsigned rights) {
    connection *c = free_slot(server);
    if (c == NULL) {
        refuse(server, fd, BODHI_ERROR_BUSY, "the server has as many connections as it may have");
        return;
    }
    uint32_t serial = c->serial + 1;
    *c = (connection){.fd = fd,
                      .serial = serial < FIRST_SERIAL ? FIRST_SERIAL : serial,
                      .rights = rights,
                      .in = {.from_client = true, .max_frame = server->options.max_frame},
                      .in_deadline = now_ms() + GREETING_MS,
                      .events = EPOLLIN};
    struct epoll_event event = {.events = EPOLLIN,
                                .data.u64 = (uint64_t)c->serial << 32 | (uint64_t)(c - server->connections)};
    if (epoll_ctl(server->epoll, EPOLL_CTL_ADD, fd, &event) != 0) {
        (void)io_close(fd);
        c->fd = -1;
        return;
    }
    server->counters[COUNT_ADMITTED]++;
}

/* --- Coming in --------------------------------------------------------------------------------------------------- */

/* What a user of this machine may do; 0: nothing. */
static unsigned rights_of(const bodhi_server *server, uid_t user) {
    if (user == geteuid()) {
        return RIGHT_PUSH | RIGHT_READ | RIGHT_STOP;
    }
    for (int64_t i = 0; i < server->options.n_allowed; i++) {
        if (server->allowed[i] == user) {
            return RIGHT_READ;
        }
    }
    return 0;
}

static void accept_local(bodhi_server *server) {
    for (int i = 0; i < N_EVENTS; i++) {
        int fd = accept4(server->options.listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            return;
        }
        struct ucred peer;
        socklen_t size = sizeof peer;
        unsigned rights = getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 ? rights_of(server, peer.uid) : 0;
        if (rights == 0) {
            refuse(server, fd, BODHI_ERROR_UNSAFE, "this server does not serve this user");
        } else {
            add_connection(server, fd, rights);
        }
    }
}

static void take_admitted(bodhi_server *server) {
    int fd;
    while (read(server->admitted[0], &fd, sizeof fd) == (ssize_t)sizeof fd) {
        add_connection(server, fd, RIGHT_PUSH);
    }
}

int bodhi_server_admit(bodhi_server *server, int fd) {
    int flags = fcntl(fd, F_GETFL);
    ssize_t put = flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0
                      ? write(server->admitted[1], &fd, sizeof fd) /* so small a write to a pipe is whole or nothing */
                      : -1;
    if (put == (ssize_t)sizeof fd) {
        return BODHI_OK;
    }
    int error = errno;
    (void)io_close(fd);
    return bodhi_fail_system(error, "admitting a connection", "server");
}

/* --- Receiving --------------------------------------------------------------------------------------------------- */

static void begin_deadline(const bodhi_server *server, connection *c) {
    int64_t patience =
        wire_amid(&c->in) ? server->options.message_ms + (int64_t)(c->in.size / 1000) : server->options.idle_ms;
    c->in_deadline = now_ms() + patience;
}

/* Bytes have come; false: the connection ends. */
static bool received(bodhi_server *server, connection *c, size_t n) {
    size_t before = c->in.n_header;
    enum wire_result result = wire_took(&c->in, n);
    if (result == WIRE_MORE) {
        if (before < WIRE_HEADER && (before == 0 || c->in.n_header == WIRE_HEADER)) {
            begin_deadline(server, c);
        }
        return true;
    }
    if (result != WIRE_MESSAGE) {
        server->counters[COUNT_REFUSED]++;
        return answer_error(c, result == WIRE_BAD_VERSION ? BODHI_ERROR_VERSION : BODHI_ERROR_ARGUMENT,
                            wire_explain(result));
    }
    begin_deadline(server, c);
    return answer(server, c);
}

/* Read what is there, within bounds, and answer it. False: the other side has gone. */
static bool receive(bodhi_server *server, connection *c) {
    size_t total = 0;
    while (total < TURN_BYTES && !c->ending && c->turn != TURN_WAITING && c->n_descriptors == 0 &&
           c->n_out - c->out_sent < OUTPUT_ENOUGH && !server->stopping) {
        unsigned char *at;
        size_t space = wire_space(&c->in, &at);
        ssize_t got = recv(c->fd, at, space, MSG_DONTWAIT);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
        }
        total += (size_t)got;
        c->ending = !received(server, c, (size_t)got) || c->ending;
    }
    return true;
}

/* After an error: read and forget, until the other side has closed. */
static bool discard(const connection *c) {
    char bytes[4096];
    for (int i = 0; i < N_EVENTS; i++) {
        ssize_t got = recv(c->fd, bytes, sizeof bytes, MSG_DONTWAIT);
        if (got <= 0) {
            return got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
        }
    }
    return true;
}

static void on_connection(bodhi_server *server, connection *c, uint32_t events) {
    bool alive = true;
    if (c->shut) {
        alive = discard(c);
    } else if ((events & (EPOLLIN | EPOLLERR | EPOLLHUP)) != 0 && !c->ending) {
        alive = receive(server, c);
    }
    if (!alive || ((events & (EPOLLERR | EPOLLHUP)) != 0 && (c->ending || c->turn == TURN_WAITING))) {
        drop(server, c);
    } else {
        settle(server, c);
    }
}

/* --- The loop ---------------------------------------------------------------------------------------------------- */

/* Look at every deadline, acknowledge batches that are due, and send what that has put into outputs. */
static void tick(bodhi_server *server) {
    int64_t now = now_ms();
    for (held *h = server->datasets; h != NULL; h = h->next) {
        if (h->since != 0 && now >= h->since + server->options.batch_ms) {
            acknowledge(server, h);
        }
    }
    if (server->reading != NULL && now >= server->reading_deadline) {
        end_turn(server);
    }
    for (int i = 0; i < server->n_slots; i++) {
        connection *c = &server->connections[i];
        if (c->fd < 0) {
            continue;
        }
        bool late = (c->in_deadline != 0 && now >= c->in_deadline && c->turn == TURN_NONE) ||
                    (c->out_deadline != 0 && now >= c->out_deadline);
        if (late) {
            server->counters[COUNT_TIMED_OUT] += !c->shut;
            drop(server, c);
        }
    }
}

/* Acknowledgements and turns put output into other connections than the one that was heard. */
static void settle_all(bodhi_server *server) {
    for (int i = 0; i < server->n_slots; i++) {
        connection *c = &server->connections[i];
        if (c->fd >= 0 && (c->n_out > 0 || c->events == 0 || c->ending)) {
            settle(server, c);
        }
    }
}

static bool drain_wake(const bodhi_server *server) {
    char bytes[64];
    bool woken = false;
    while (read(server->wake[0], bytes, sizeof bytes) > 0) {
        woken = true;
    }
    return woken;
}

static void handle(bodhi_server *server, const struct epoll_event *event) {
    uint32_t serial = (uint32_t)(event->data.u64 >> 32);
    if (serial == EVENT_ADMITTED) {
        take_admitted(server);
    } else if (serial == EVENT_LISTENER) {
        accept_local(server);
    } else if (serial >= FIRST_SERIAL) {
        connection *c = &server->connections[(uint32_t)event->data.u64];
        if (c->fd >= 0 && c->serial == serial) { /* else it was closed since epoll told */
            on_connection(server, c, event->events);
        }
    }
}

int bodhi_server_run(bodhi_server *server) {
    struct epoll_event events[N_EVENTS];
    int64_t next_tick = now_ms() + TICK_MS;
    while (!server->stopping) {
        int64_t left = next_tick - now_ms();
        int n = epoll_wait(server->epoll, events, N_EVENTS, left > 0 ? (int)left : 0);
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
        settle_all(server);
        if (drain_wake(server)) {
            return BODHI_OK;
        }
    }
    return BODHI_END;
}

/* --- Opening and closing ----------------------------------------------------------------------------------------- */

static bool watch(const bodhi_server *server, int fd, uint32_t serial) {
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = (uint64_t)serial << 32};
    return epoll_ctl(server->epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

static bool open_descriptors(bodhi_server *server) {
    server->epoll = epoll_create1(EPOLL_CLOEXEC);
    return server->epoll >= 0 && pipe2(server->wake, O_CLOEXEC | O_NONBLOCK) == 0 &&
           pipe2(server->admitted, O_CLOEXEC | O_NONBLOCK) == 0 && watch(server, server->wake[0], EVENT_WAKE) &&
           watch(server, server->admitted[0], EVENT_ADMITTED) &&
           (server->options.listener < 0 || watch(server, server->options.listener, EVENT_LISTENER));
}

static void choose_defaults(bodhi_serve_options *o) {
    o->max_connections = o->max_connections <= 0 ? DEFAULT_CONNECTIONS : o->max_connections;
    o->max_connections = o->max_connections > MAX_CONNECTIONS ? MAX_CONNECTIONS : o->max_connections;
    o->message_ms = o->message_ms <= 0 ? 30000 : o->message_ms;
    o->idle_ms = o->idle_ms <= 0 ? 3600 * 1000 : o->idle_ms;
    o->batch_ms = o->batch_ms <= 0 ? 1000 : o->batch_ms;
}

static int make_server(bodhi_server *server, const char *directory) {
    size_t users = (size_t)server->options.n_allowed;
    server->connections = calloc((size_t)server->options.max_connections, sizeof *server->connections);
    server->allowed = malloc((users + 1) * sizeof *server->allowed);
    if (server->connections == NULL || server->allowed == NULL) {
        return bodhi_fail_memory();
    }
    if (users > 0) {
        memcpy(server->allowed, server->options.allowed, users * sizeof *server->allowed);
    }
    server->n_slots = server->options.max_connections;
    for (int i = 0; i < server->n_slots; i++) {
        server->connections[i].fd = -1;
    }
    server->counters[COUNT_PID] = (uint64_t)getpid();
    server->counters[COUNT_STARTED] = (uint64_t)time(NULL);
    server->counters[COUNT_MAX_CONNECTIONS] = (uint64_t)server->n_slots;
    server->counters[COUNT_SERIALIZED] = server->options.serialize_reads != 0;
    int status = bodhi_open(directory, BODHI_CREATE, &server->store);
    if (status == BODHI_OK && !open_descriptors(server)) {
        status = bodhi_fail_system(errno, "epoll", directory);
    }
    return status;
}

int bodhi_server_open(const char *directory, const bodhi_serve_options *options, bodhi_server **server) {
    if (directory == NULL || options == NULL || server == NULL || options->n_allowed < 0 ||
        (options->n_allowed > 0 && options->allowed == NULL)) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT, "directory, options and server must be given");
    }
    bodhi_server *opened = calloc(1, sizeof *opened);
    if (opened == NULL) {
        return bodhi_fail_memory();
    }
    opened->options = *options;
    opened->epoll = opened->wake[0] = opened->wake[1] = opened->admitted[0] = opened->admitted[1] = -1;
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
    return server->wake[1];
}

static void close_pipe(const int ends[2]) {
    for (int i = 0; i < 2; i++) {
        if (ends[i] >= 0) {
            (void)io_close(ends[i]);
        }
    }
}

void bodhi_server_close(bodhi_server *server) {
    if (server == NULL) {
        return;
    }
    for (held *h = server->datasets; h != NULL; h = h->next) {
        acknowledge(server, h);
    }
    for (int i = 0; i < server->n_slots; i++) {
        connection *c = &server->connections[i];
        c->turn = TURN_NONE; /* nobody's turn comes any more */
        if (c->fd >= 0) {
            (void)send_output(server, c); /* what goes out at once */
        }
    }
    for (int i = 0; i < server->n_slots; i++) {
        if (server->connections[i].fd >= 0) {
            drop(server, &server->connections[i]);
        }
    }
    held_close_all(server);
    int fd;
    while (server->admitted[0] >= 0 && read(server->admitted[0], &fd, sizeof fd) == (ssize_t)sizeof fd) {
        (void)io_close(fd);
    }
    close_pipe(server->wake);
    close_pipe(server->admitted);
    if (server->epoll >= 0) {
        (void)io_close(server->epoll);
    }
    bodhi_close(server->store);
    free(server->connections);
    free(server->allowed);
    free(server);
}
