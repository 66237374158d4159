/* Connections of the server; see server.h. */
#include "server/server.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/io.h"
#include "base/threads.h"

#define FULL                                                                                                           \
    "the server has as many connections as it may have, in all or of others than its owner; 'himach cache start "      \
    "--connections' allows more"

enum {
    TURN_BYTES = 8 << 20,     /* read from one connection before the next has its turn */
    OUTPUT_ENOUGH = 64 << 10, /* output that waits stops us from reading more requests */
    ADMISSION_MS = 5000,      /* for the proof of the key */
    GREETING_MS = 10000,      /* for the first message */
    SHUT_MS = 2000,           /* for the other side to close after an error */
    MOST_DISCARDED = 64       /* reads of what comes after an error, before others have their turn */
};

/* --- Memory ------------------------------------------------------------------------------------------------------ */

static bool pushes(const connection *c) {
    return (c->flags & WIRE_PUSHES) != 0;
}

bool is_crowded(const bodhi_server *server) {
    return server->memory + atomic_load(&server->backlog) >= (size_t)server->options.memory;
}

static void count_memory(bodhi_server *server, connection *c) {
    server->memory -= c->memory;
    c->memory = (c->in.body == NULL ? 0 : c->in.size) + c->out.capacity;
    server->memory += c->memory;
}

/* --- Output ------------------------------------------------------------------------------------------------------ */

unsigned char *output_room(connection *c, size_t size) {
    if (c->out.n_body == 0 && wire_room(&c->out, WIRE_ANSWER_HEAD) != NULL) {
        c->out.n_body = WIRE_ANSWER_HEAD;
    }
    return wire_room(&c->out, size);
}

void output_add(connection *c, const void *data, size_t size) {
    (void)output_room(c, size);
    wire_add(&c->out, data, size);
}

static bool end_answer(connection *c, wire_answer head) {
    c->moved = c->out.n == 0 ? now_ms() : c->moved; /* from now on it has time to take it */
    if (output_room(c, 0) != NULL) {
        memcpy(wire_body(&c->out), &head, sizeof head);
    }
    return wire_end(&c->out, WIRE_ANSWER);
}

bool output_end(connection *c, enum wire_verb verb, size_t count) {
    return end_answer(c, (wire_answer){.verb = (uint16_t)verb, .count = (uint16_t)count}) ||
           output_error(c, BODHI_ERROR_MEMORY, "out of memory");
}

bool output_error(connection *c, int status, const char *text) {
    wire_forget(&c->out);
    output_add(c, text, strnlen(text, WIRE_MAX_TEXT));
    (void)end_answer(c, (wire_answer){.status = status, .verb = (uint16_t)c->in.verb});
    return false;
}

/* Put bytes that are no message into the output. */
static void output_raw(connection *c, const void *data, size_t size) {
    c->moved = c->out.n == 0 ? now_ms() : c->moved;
    if (wire_room(&c->out, size) != NULL) {
        memcpy(c->out.bytes + c->out.n, data, size);
        c->out.n += size;
    }
}

static void close_descriptors(connection *c) {
    while (c->n_descriptors > 0) {
        io_drop(c->descriptors[--c->n_descriptors]);
    }
}

/* Send what can be sent now, up to the byte that descriptors go with, or these with the rest. -1 and errno. */
static ssize_t send_some(connection *c) {
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int) * WIRE_MAX_SEGMENTS)];
    } control = {0};
    struct iovec part = {.iov_base = c->out.bytes + c->out_sent, .iov_len = c->out.n - c->out_sent};
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
    ssize_t sent = bodhi_io.sendmsg(c->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0 && with) {
        close_descriptors(c);
    }
    return sent;
}

bool connection_send(connection *c) {
    while (c->out_sent < c->out.n) {
        ssize_t sent = send_some(c);
        if (sent < 0 && errno == EINTR) {
            continue;
        }
        if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            return true;
        }
        if (sent <= 0) {
            return false;
        }
        c->out_sent += (size_t)sent;
        c->moved = now_ms();
    }
    wire_empty(&c->out); /* its memory goes, too: many idle connections would hold what others wait for */
    c->out_sent = 0;
    return true;
}

/* --- Connections ------------------------------------------------------------------------------------------------- */

uint64_t connection_id(const bodhi_server *server, const connection *c) {
    return (uint64_t)c->serial << 32 | (uint64_t)(c - server->connections);
}

void connection_drop(bodhi_server *server, connection *c) {
    (void)bodhi_io.epoll_ctl(server->epoll, EPOLL_CTL_DEL, c->fd, NULL);
    io_drop(c->fd);
    c->fd = -1;
    close_descriptors(c);
    wire_free(&c->in);
    wire_empty(&c->out);
    count_memory(server, c);
    server->on_drop(server, c);
}

/* Whether somebody else has to do something before more of it is read: the disk, or who has the memory. One message of
 * a pusher may come beyond that. */
static bool is_held_up(const bodhi_server *server, const connection *c) {
    return c->turn == TURN_WAITING || (pushes(c) && !wire_amid(&c->in) && is_crowded(server));
}

/* Whether it is read: not if others have to do something first, or it has to take its answers. */
static bool listens(const bodhi_server *server, const connection *c) {
    bool full = c->out.n - c->out_sent >= OUTPUT_ENOUGH;
    return !c->ending && !full && c->n_descriptors == 0 && !is_held_up(server, c);
}

/* Ask epoll for what this connection waits for. */
static void ask_events(const bodhi_server *server, connection *c) {
    uint32_t events = (c->shut || listens(server, c) ? EPOLLIN : 0U) | (c->out.n > 0 ? EPOLLOUT : 0U);
    if (events != c->events) {
        /* The end of the other side is told of even if nothing is asked: then once, and not again and again. */
        struct epoll_event event = {.events = events == 0 ? EPOLLET : events, .data.u64 = connection_id(server, c)};
        if (bodhi_io.epoll_ctl(server->epoll, EPOLL_CTL_MOD, c->fd, &event) == 0) {
            c->events = events; /* else it is tried again */
        }
    }
}

/* Send what waits; close what has ended; ask epoll for what is waited for. */
static void update(bodhi_server *server, connection *c) {
    if (!connection_send(c)) {
        connection_drop(server, c);
        return;
    }
    if (c->ending && c->out.n == 0 && !c->shut) {
        /* Closing with unread bytes would reset the connection and lose the error on its way. */
        (void)shutdown(c->fd, SHUT_WR);
        c->shut = true;
        c->begun = now_ms();
    }
    count_memory(server, c);
    ask_events(server, c);
}

/* --- Slots ------------------------------------------------------------------------------------------------------- */

/* NULL: all are taken. */
static connection *free_slot(bodhi_server *server) {
    for (int i = 0; i < server->options.max_connections; i++) {
        if (i == server->n_slots) {
            server->connections[server->n_slots++].fd = -1;
        }
        if (server->connections[i].fd < 0) {
            return &server->connections[i];
        }
    }
    return NULL;
}

/* Connections of others than the owner on this machine. */
static int count_others(const bodhi_server *server) {
    int n = 0;
    for (int i = 0; i < server->n_slots; i++) {
        const connection *c = &server->connections[i];
        n += c->fd >= 0 && (c->remote || (c->rights & RIGHT_PUSH) == 0);
    }
    return n;
}

/* A slot, of which others than the owner have half at most; NULL: none is left. */
static connection *find_slot(bodhi_server *server, unsigned rights) {
    bool owner = (rights & RIGHT_PUSH) != 0;
    return owner || count_others(server) < (server->options.max_connections + 1) / 2 ? free_slot(server) : NULL;
}

void connection_refuse(bodhi_server *server, int fd, bool remote, int status, const char *text) {
    static const char full[GREETING] = WORD_FULL;
    connection refused = {.fd = fd};
    if (remote) {
        output_raw(&refused, full, sizeof full);
    } else {
        (void)output_error(&refused, status, text);
    }
    (void)connection_send(&refused);
    wire_empty(&refused.out);
    io_drop(fd);
    server->counters[COUNT_REFUSED]++;
}

/* Begin the admission of a client of another machine. False: the system has no random number. */
static bool greet(connection *c) {
    bool drawn = io_random(c->proof, NONCE);
    c->n_proof = NONCE;
    output_raw(c, WORD_WELCOME, WORD);
    output_raw(c, c->proof, NONCE);
    return drawn;
}

void connection_add(bodhi_server *server, int fd, unsigned rights, bool remote) {
    connection *c = find_slot(server, rights);
    if (c == NULL) {
        connection_refuse(server, fd, remote, BODHI_ERROR_BUSY, FULL);
        return;
    }
    uint32_t serial = c->serial + 1;
    *c = (connection){.fd = fd,
                      .serial = serial < FIRST_SERIAL ? FIRST_SERIAL : serial,
                      .rights = rights,
                      .remote = remote,
                      .silent = true,
                      .begun = now_ms(),
                      .in = {.requests = WIRE_ASKS},
                      .events = EPOLLIN};
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = connection_id(server, c)};
    if ((remote && !greet(c)) || bodhi_io.epoll_ctl(server->epoll, EPOLL_CTL_ADD, fd, &event) != 0) {
        wire_empty(&c->out);
        io_drop(fd);
        c->fd = -1;
        return;
    }
    server->counters[COUNT_ADMITTED] += !remote;
}

/* Whether it is still to prove that it has the key. */
static bool in_admission(const connection *c) {
    return c->remote && c->n_proof < sizeof c->proof;
}

/* Whether it waits for us: for its turn, its answers or its frames to be written; it need not say anything then. */
static bool waits_for_us(const bodhi_server *server, const connection *c) {
    bool writes = pushes(c) && c->dataset != NULL && c->dataset->awaited > 0 && !wire_amid(&c->in);
    return writes || c->turn != TURN_NONE || is_held_up(server, c);
}

/* How long it may take for what it does since c->begun. */
static int64_t patience_of(const bodhi_server *server, const connection *c) {
    if (c->shut) {
        return SHUT_MS;
    }
    if (wire_amid(&c->in)) {
        return server->options.message_ms + (int64_t)(c->in.size / 1000);
    }
    return !c->silent ? server->options.idle_ms : in_admission(c) ? ADMISSION_MS : GREETING_MS;
}

/* Whether it is late with what it has to send or take. */
static bool is_late(const bodhi_server *server, connection *c, int64_t now) {
    bool waits = !c->shut && waits_for_us(server, c);
    c->begun = waits ? now : c->begun; /* counted from when it is read again */
    bool owes = c->out.n > 0 || (wire_amid(&c->in) && !waits);
    return now >= c->begun + patience_of(server, c) || (owes && now >= c->moved + server->options.message_ms);
}

void connections_tick(bodhi_server *server) {
    int64_t now = now_ms();
    for (int i = 0; i < server->n_slots; i++) {
        connection *c = &server->connections[i];
        if (c->fd >= 0 && is_late(server, c, now)) {
            server->counters[COUNT_TIMED_OUT] += !c->shut;
            connection_drop(server, c);
        }
    }
}

/* --- Receiving --------------------------------------------------------------------------------------------------- */

/* What the parser says of the bytes so far; false: the connection ends. */
static bool parsed(bodhi_server *server, connection *c, enum wire_result result) {
    if (result == WIRE_MORE) {
        return true;
    }
    if (result != WIRE_MESSAGE) {
        server->counters[COUNT_REFUSED]++;
        return output_error(c, result == WIRE_BAD_VERSION ? BODHI_ERROR_VERSION : BODHI_ERROR_PROTOCOL,
                            wire_explain(result));
    }
    c->silent = false;
    c->begun = c->moved;
    bool goes_on = server->on_message(server, c);
    wire_release(&c->in);
    return goes_on;
}

/* Bytes have come; false: the connection ends. */
static bool received(bodhi_server *server, connection *c, size_t n) {
    c->moved = now_ms();
    c->begun = c->in.n_header == 0 ? c->moved : c->begun;
    bool goes_on = parsed(server, c, wire_took(&c->in, n));
    count_memory(server, c);
    return goes_on;
}

/* Bytes of a client's proof have come; false: it does not have the key. */
static bool admitted(bodhi_server *server, connection *c, size_t n) {
    const bodhi_serve_options *o = &server->options;
    uint8_t reply[REPLY] = {1};
    uint8_t computed[HMAC_BYTES];
    c->n_proof += n;
    if (in_admission(c)) {
        return true;
    }
    if (link_prove(o->key, o->key_bytes, "client", c->proof, computed) != BODHI_OK ||
        !mac_is_same(computed, c->proof + sizeof c->proof - HMAC_BYTES, HMAC_BYTES) ||
        link_prove(o->key, o->key_bytes, "session", c->proof, computed) != BODHI_OK ||
        link_prove(o->key, o->key_bytes, "server", c->proof, reply + 4) != BODHI_OK) {
        server->counters[COUNT_REFUSED]++;
        output_raw(c, reply, sizeof reply);
        return false;
    }
    reply[0] = 0;
    output_raw(c, reply, sizeof reply);
    mac_begin(&c->out.mac, computed, false);
    mac_begin(&c->in.mac, computed, true);
    explicit_bzero(computed, sizeof computed);
    c->rights = RIGHT_PUSH | RIGHT_READ;
    server->counters[COUNT_ADMITTED]++;
    return true;
}

/* Where the next bytes of a connection are to be put, and how many at most. */
static size_t space_of(connection *c, unsigned char **at) {
    *at = c->proof + c->n_proof;
    return in_admission(c) ? sizeof c->proof - c->n_proof : wire_space(&c->in, at);
}

/* Read what is there, within bounds, and answer it. False: the other side has gone. */
static bool receive(bodhi_server *server, connection *c) {
    size_t total = 0;
    while (total < TURN_BYTES && listens(server, c)) {
        unsigned char *at;
        size_t space = space_of(c, &at);
        ssize_t got = bodhi_io.recv(c->fd, at, space, MSG_DONTWAIT);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
        }
        total += (size_t)got;
        bool goes_on = in_admission(c) ? admitted(server, c, (size_t)got) : received(server, c, (size_t)got);
        c->ending = !goes_on || c->ending;
    }
    return true;
}

/* After an error: read and forget, until the other side has closed. */
static bool discard(const connection *c) {
    char bytes[4096];
    for (int i = 0; i < MOST_DISCARDED; i++) {
        ssize_t got = bodhi_io.recv(c->fd, bytes, sizeof bytes, MSG_DONTWAIT);
        if (got <= 0) {
            return got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
        }
    }
    return true;
}

void connection_event(bodhi_server *server, connection *c, uint32_t events) {
    bool alive = true;
    if (c->shut) {
        alive = discard(c);
    } else if ((events & (EPOLLIN | EPOLLERR | EPOLLHUP)) != 0 && !c->ending) {
        alive = receive(server, c);
    }
    if (!alive || ((events & (EPOLLERR | EPOLLHUP)) != 0 && (c->ending || c->turn == TURN_WAITING))) {
        connection_drop(server, c);
    } else {
        update(server, c);
    }
}

void connections_update(bodhi_server *server) {
    for (int i = 0; i < server->n_slots; i++) {
        connection *c = &server->connections[i];
        if (c->fd >= 0 && (c->out.n > 0 || c->events == 0 || c->ending)) {
            update(server, c);
        }
    }
}
