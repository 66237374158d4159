/* Connections of the server; see connection.h. */
#include "server/connection.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/io.h"

enum {
    TURN_BYTES = 8 << 20,    /* read from one connection before the next has its turn */
    OUTPUT_ENOUGH = 1 << 20, /* output that waits stops us from reading more requests */
    GREETING_MS = 10000,     /* for the first message */
    SHUT_MS = 2000,          /* for the other side to close after an error */
    MOST_DISCARDED = 64      /* reads of what comes after an error, before others have their turn */
};

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

bool output_error(connection *c, int status, const char *text) {
    size_t size = strnlen(text, WIRE_MAX_TEXT);
    unsigned char *body = output_body(c, 4 + size);
    if (body != NULL) {
        wire_put32(body, (uint32_t)status);
        memcpy(body + 4, text, size);
        output_done(c, WIRE_ERROR, 4 + size);
    }
    return false;
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
    ssize_t sent = bodhi_io.sendmsg(c->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0 && with) {
        close_descriptors(c);
    }
    return sent;
}

bool connection_send(const bodhi_server *server, connection *c) {
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

uint64_t connection_id(const bodhi_server *server, const connection *c) {
    return (uint64_t)c->serial << 32 | (uint64_t)(c - server->connections);
}

void connection_drop(bodhi_server *server, connection *c) {
    (void)bodhi_io.epoll_ctl(server->epoll, EPOLL_CTL_DEL, c->fd, NULL);
    (void)io_close(c->fd);
    c->fd = -1;
    close_descriptors(c);
    wire_free(&c->in);
    free(c->out);
    c->out = NULL;
    c->dropped = true;
    server->n_dropped++;
}

/* Whether more is to be read of it now. */
static bool listens(const connection *c) {
    bool full = c->n_out - c->out_sent >= OUTPUT_ENOUGH;
    bool behind = c->dataset != NULL && c->dataset->ingest != NULL && (c->flags & WIRE_PUSHES) != 0 &&
                  ingest_is_behind(c->dataset->ingest);
    return !c->ending && !full && !behind && !c->asked && c->turn != TURN_WAITING && c->n_descriptors == 0;
}

/* Ask epoll for what this connection waits for. */
static void ask_events(const bodhi_server *server, connection *c) {
    uint32_t events = (c->shut || listens(c) ? EPOLLIN : 0U) | (c->out_sent < c->n_out ? EPOLLOUT : 0U);
    if (events != c->events) {
        struct epoll_event event = {.events = events, .data.u64 = connection_id(server, c)};
        if (bodhi_io.epoll_ctl(server->epoll, EPOLL_CTL_MOD, c->fd, &event) == 0) {
            c->events = events; /* else it is tried again */
        }
    }
}

void connection_update(bodhi_server *server, connection *c) {
    if (!connection_send(server, c)) {
        connection_drop(server, c);
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
        if (server->connections[i].fd < 0 && !server->connections[i].dropped) {
            return &server->connections[i];
        }
    }
    return NULL;
}

void connection_refuse(bodhi_server *server, int fd, int status, const char *text) {
    connection told = {.fd = fd};
    (void)output_error(&told, status, text);
    (void)connection_send(server, &told);
    free(told.out);
    (void)io_close(fd);
    server->counters[COUNT_REFUSED]++;
}

connection *connection_add(bodhi_server *server, int fd, unsigned rights) {
    connection *c = free_slot(server);
    if (c == NULL) {
        connection_refuse(server, fd, BODHI_ERROR_BUSY, "the server has as many connections as it may have");
        return NULL;
    }
    uint32_t serial = c->serial + 1;
    *c = (connection){.fd = fd,
                      .serial = serial < FIRST_SERIAL ? FIRST_SERIAL : serial,
                      .rights = rights,
                      .in = {.from_client = true, .max_frame = server->options.max_frame},
                      .in_deadline = now_ms() + GREETING_MS,
                      .events = EPOLLIN};
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = connection_id(server, c)};
    if (bodhi_io.epoll_ctl(server->epoll, EPOLL_CTL_ADD, fd, &event) != 0) {
        (void)io_close(fd);
        c->fd = -1;
        return NULL;
    }
    server->counters[COUNT_ADMITTED]++;
    return c;
}

bool connection_is_late(const connection *c, int64_t now) {
    bool waits_for_us = c->turn != TURN_NONE || c->asked;
    return (c->in_deadline != 0 && now >= c->in_deadline && !waits_for_us) ||
           (c->out_deadline != 0 && now >= c->out_deadline);
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
        return output_error(c, result == WIRE_BAD_VERSION ? BODHI_ERROR_VERSION : BODHI_ERROR_ARGUMENT,
                            wire_explain(result));
    }
    begin_deadline(server, c);
    return server->on_message(server, c);
}

/* Read what is there, within bounds, and answer it. False: the other side has gone. */
static bool receive(bodhi_server *server, connection *c) {
    size_t total = 0;
    while (total < TURN_BYTES && listens(c) && !server->stopping) {
        unsigned char *at;
        size_t space = wire_space(&c->in, &at);
        ssize_t got = bodhi_io.recv(c->fd, at, space, MSG_DONTWAIT);
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
    if (!alive || ((events & (EPOLLERR | EPOLLHUP)) != 0 && (c->ending || c->asked || c->turn == TURN_WAITING))) {
        connection_drop(server, c);
    } else {
        connection_update(server, c);
    }
}
