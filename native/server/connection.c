/* Connections of the server; see connection.h. */
#include "server/connection.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/io.h"
#include "base/memory.h"

enum {
    TURN_BYTES = 8 << 20,     /* read from one connection before the next has its turn */
    OUTPUT_ENOUGH = 64 << 10, /* output that waits stops us from reading more requests */
    OUTPUT_STEP = 4 << 10,    /* the output's memory grows by so much at least */
    LIGHT = 320 << 10,        /* bytes of a body that waits for memory only if it is a crowd of pushers' */
    GREETING_MS = 10000,      /* for the first message */
    RESERVED_MS = 2000,       /* for that of a connection beside those that there may be */
    SHUT_MS = 2000,           /* for the other side to close after an error */
    CLOGGED_MS = 2000,        /* without a byte moved, while others wait for the memory */
    MOST_DISCARDED = 64       /* reads of what comes after an error, before others have their turn */
};

/* --- Memory ------------------------------------------------------------------------------------------------------ */

/* Three quarters of the memory are for what comes and waits to be written, one is for answers. */
static size_t share_in(const bodhi_server *server) {
    return (size_t)server->options.memory / 4 * 3;
}

static bool is_crowded_in(const bodhi_server *server) {
    return server->memory_in + server->backlog >= share_in(server);
}

static bool is_crowded_out(const bodhi_server *server) {
    return server->memory_out >= (size_t)server->options.memory / 4;
}

bool connections_wait(const bodhi_server *server) {
    return server->n_stalled > 0 || is_crowded_in(server) || is_crowded_out(server);
}

static bool pushes(const connection *c) {
    return (c->flags & WIRE_PUSHES) != 0;
}

static void count_memory(bodhi_server *server, connection *c) {
    server->memory_in += c->in.capacity - c->memory_in;
    server->memory_out += c->out_capacity - c->memory_out;
    c->memory_in = c->in.capacity;
    c->memory_out = c->out_capacity;
}

/* Whether there is memory for the body of a header. One that is larger than all there may be comes alone. */
static bool has_room(const bodhi_server *server, const connection *c) {
    size_t others = server->memory_in - c->memory_in + server->backlog;
    return (c->in.size <= LIGHT && !(pushes(c) && is_crowded_in(server))) || others + c->in.size <= share_in(server) ||
           (c->in.size > share_in(server) && others <= share_in(server) / 2);
}

static void set_stalled(bodhi_server *server, connection *c, bool stalled) {
    server->n_stalled += (int)stalled - (int)c->stalled;
    c->stalled = stalled;
}

/* --- Output ------------------------------------------------------------------------------------------------------ */

static unsigned char *output_room(connection *c, size_t size) {
    size_t needed = c->n_out + WIRE_HEADER + WIRE_ANSWER_HEAD + size + MAC_BYTES;
    size_t wanted = needed <= c->out_capacity || needed >= OUTPUT_ENOUGH ? needed : 2 * needed + OUTPUT_STEP;
    return ARRAY_FIT(c->out, c->out_capacity, wanted) ? c->out + c->n_out + WIRE_HEADER + WIRE_ANSWER_HEAD : NULL;
}

static void output_end(connection *c, wire_answer head, size_t size) {
    unsigned char *header = c->out + c->n_out;
    wire_part part = {.data = header + WIRE_HEADER, .size = sizeof head + size};
    memcpy(header + WIRE_HEADER, &head, sizeof head);
    if (c->mac.on) {
        wire_header_of(header, WIRE_ANSWER, part.size, 0);
    } else {
        wire_header(header, WIRE_ANSWER, &part, 1);
    }
    c->n_out += WIRE_HEADER + part.size + wire_tag(&c->mac, header, &part, 1, header + WIRE_HEADER + part.size);
}

unsigned char *output_body(connection *c, size_t size) {
    unsigned char *body = output_room(c, size);
    if (body == NULL) {
        (void)output_error(c, BODHI_ERROR_MEMORY, "out of memory");
    }
    return body;
}

bool output_done(connection *c, enum wire_verb verb, size_t count, size_t size) {
    output_end(c, (wire_answer){.verb = (uint16_t)verb, .count = (uint16_t)count}, size);
    return true;
}

bool output_error(connection *c, int status, const char *text) {
    size_t size = strnlen(text, WIRE_MAX_TEXT);
    unsigned char *body = output_room(c, size);
    if (body != NULL) {
        memcpy(body, text, size);
        output_end(c, (wire_answer){.status = status, .verb = (uint16_t)c->in.verb}, size);
    }
    return false;
}

/* All output has gone, and its memory goes, too: many idle connections would hold what others wait for. */
static void empty_output(connection *c) {
    c->n_out = c->out_sent = 0;
    c->out_deadline = 0;
    free(c->out);
    c->out = NULL;
    c->out_capacity = 0;
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

bool connection_send(bodhi_server *server, connection *c) {
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
        c->last_byte = now_ms();
    }
    empty_output(c);
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
    free(c->out);
    c->out = NULL;
    c->out_capacity = 0;
    count_memory(server, c);
    set_stalled(server, c, false);
    c->dropped = true;
    server->n_dropped++;
}

/* Whether somebody else has to do something before more of it is read: the disk, or who has the memory. */
static bool is_held_up(const bodhi_server *server, const connection *c) {
    bool crowded = !c->reserved && !wire_amid(&c->in) && (pushes(c) ? is_crowded_in(server) : is_crowded_out(server));
    return c->stalled || crowded || c->turn == TURN_WAITING ||
           (pushes(c) && c->dataset != NULL && c->dataset->ingest != NULL && ingest_is_behind(c->dataset->ingest));
}

/* Whether it is read: not if others have to do something first, or it has to take its answers. */
static bool listens(const bodhi_server *server, const connection *c) {
    bool full = c->n_out - c->out_sent >= OUTPUT_ENOUGH;
    return !c->ending && !full && c->n_descriptors == 0 && !is_held_up(server, c);
}

/* Whether it holds memory and neither takes its answer nor gives the rest of its body. */
static bool clogs(const bodhi_server *server, const connection *c, bool in, bool out, int64_t now) {
    bool takes_nothing = out && c->out_sent < c->n_out;
    bool gives_nothing = in && c->memory_in > 0 && wire_amid(&c->in) && !c->stalled && listens(server, c);
    return c->fd >= 0 && (takes_nothing || gives_nothing) && now >= c->last_byte + CLOGGED_MS;
}

void connections_unclog(bodhi_server *server, int64_t now) {
    bool in = server->n_stalled > 0 || is_crowded_in(server);
    bool out = is_crowded_out(server);
    for (int i = 0; i < server->n_slots; i++) {
        if (clogs(server, &server->connections[i], in, out, now)) {
            server->counters[COUNT_TIMED_OUT]++;
            connection_drop(server, &server->connections[i]);
        }
    }
}

/* Ask epoll for what this connection waits for. */
static void ask_events(const bodhi_server *server, connection *c) {
    uint32_t events = (c->shut || listens(server, c) ? EPOLLIN : 0U) | (c->out_sent < c->n_out ? EPOLLOUT : 0U);
    if (events != c->events) {
        /* The end of the other side is told of even if nothing is asked: then once, and not again and again. */
        struct epoll_event event = {.events = events == 0 ? EPOLLET : events, .data.u64 = connection_id(server, c)};
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
    wire_release(&c->in);
    count_memory(server, c);
    ask_events(server, c);
}

/* --- Slots ------------------------------------------------------------------------------------------------------- */

static bool is_same_caller(const caller *a, const caller *b) {
    return a->remote == b->remote && memcmp(a->id, b->id, sizeof a->id) == 0;
}

/* Close a connection that came and said nothing, so that its slot is free at once: it has neither turn nor dataset. */
static connection *displace(bodhi_server *server, connection *c) {
    connection_drop(server, c);
    c->dropped = false;
    server->n_dropped--;
    server->counters[COUNT_TIMED_OUT]++;
    return c;
}

/* The oldest silent connection of one caller or (NULL) of all, or the oldest reserved one; NULL: there is none. */
static connection *oldest_silent(bodhi_server *server, const caller *from, bool reserved) {
    connection *oldest = NULL;
    for (int i = 0; i < server->n_slots; i++) {
        connection *c = &server->connections[i];
        if (c->fd >= 0 && c->reserved == reserved && (reserved || c->silent) &&
            (from == NULL || is_same_caller(&c->from, from)) && (oldest == NULL || c->since < oldest->since)) {
            oldest = c;
        }
    }
    return oldest;
}

/* A slot from `first` up to before `end`; NULL: all are taken. */
static connection *free_slot(bodhi_server *server, int first, int end) {
    for (int i = first; i < end; i++) {
        if (i == server->n_slots) {
            server->connections[server->n_slots++].fd = -1;
        }
        if (server->connections[i].fd < 0 && !server->connections[i].dropped) {
            return &server->connections[i];
        }
    }
    return NULL;
}

static int count_of(const bodhi_server *server, const caller *from) {
    int n = 0;
    for (int i = 0; i < server->n_slots; i++) {
        n += server->connections[i].fd >= 0 && is_same_caller(&server->connections[i].from, from);
    }
    return n;
}

void connections_explain(const bodhi_server *server, char why[WIRE_MAX_TEXT]) {
    (void)snprintf(why, WIRE_MAX_TEXT, "the server has as many connections as it may have, %d; " MORE,
                   server->options.max_connections);
}

/* A slot for a caller; NULL after the limit was told. */
static connection *find_slot(bodhi_server *server, unsigned rights, const caller *from, char why[WIRE_MAX_TEXT]) {
    int most = server->options.max_connections;
    int most_of_one = server->options.max_per_caller;
    bool owner = (rights & RIGHT_STOP) != 0;
    connection *silent = NULL;
    if (!owner && count_of(server, from) >= most_of_one) {
        (void)snprintf(why, WIRE_MAX_TEXT, "this %s has as many connections as one may have, %d of %d; " MORE,
                       from->remote ? "address" : "user", most_of_one, most);
        silent = oldest_silent(server, from, false);
        return silent == NULL ? NULL : displace(server, silent);
    }
    connections_explain(server, why);
    connection *slot = free_slot(server, RESERVED, RESERVED + most);
    if (slot == NULL && (silent = oldest_silent(server, NULL, false)) != NULL) {
        slot = displace(server, silent);
    }
    if (slot == NULL && owner) {
        slot = free_slot(server, 0, RESERVED);
        silent = oldest_silent(server, NULL, true);
        slot = slot == NULL && silent != NULL ? displace(server, silent) : slot;
    }
    return slot;
}

void connection_refuse(bodhi_server *server, int fd, const uint8_t *session, int status, const char *text) {
    connection told = {.fd = fd};
    if (session != NULL) {
        mac_begin(&told.mac, session, false);
    }
    (void)output_error(&told, status, text);
    (void)connection_send(server, &told);
    free(told.out);
    io_drop(fd);
    server->counters[COUNT_REFUSED]++;
}

void connection_add(bodhi_server *server, int fd, unsigned rights, const caller *from, const uint8_t *session) {
    char why[WIRE_MAX_TEXT];
    connection *c = find_slot(server, rights, from, why);
    if (c == NULL) {
        connection_refuse(server, fd, session, BODHI_ERROR_BUSY, why);
        return;
    }
    uint32_t serial = c->serial + 1;
    int64_t now = now_ms();
    bool reserved = c - server->connections < RESERVED;
    *c = (connection){.fd = fd,
                      .serial = serial < FIRST_SERIAL ? FIRST_SERIAL : serial,
                      .rights = rights,
                      .from = *from,
                      .reserved = reserved,
                      .silent = true,
                      .since = now,
                      .last_byte = now,
                      .in = {.from_client = true, .asks = true},
                      .in_deadline = now + (reserved ? RESERVED_MS : GREETING_MS),
                      .events = EPOLLIN};
    if (session != NULL) {
        mac_begin(&c->mac, session, false);
        mac_begin(&c->in.mac, session, true);
    }
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = connection_id(server, c)};
    if (bodhi_io.epoll_ctl(server->epoll, EPOLL_CTL_ADD, fd, &event) != 0) {
        io_drop(fd);
        c->fd = -1;
        return;
    }
    server->counters[COUNT_ADMITTED]++;
}

/* Whether frames that it has pushed are being written, and it says nothing meanwhile. */
static bool awaits_disk(const connection *c) {
    return pushes(c) && c->dataset != NULL && c->dataset->awaited > 0 && !wire_amid(&c->in);
}

bool connection_is_late(const bodhi_server *server, connection *c, int64_t now) {
    int64_t later = now + server->options.message_ms;
    if (!c->shut && c->in_deadline < later && (is_held_up(server, c) || c->turn != TURN_NONE || awaits_disk(c))) {
        c->in_deadline = later; /* counted from when it is read again */
    }
    return (c->in_deadline != 0 && now >= c->in_deadline) || (c->out_deadline != 0 && now >= c->out_deadline);
}

/* --- Receiving --------------------------------------------------------------------------------------------------- */

static void begin_deadline(const bodhi_server *server, connection *c) {
    int64_t patience =
        wire_amid(&c->in) ? server->options.message_ms + (int64_t)(c->in.size / 1000) : server->options.idle_ms;
    c->in_deadline = now_ms() + patience;
}

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
    begin_deadline(server, c);
    return server->on_message(server, c);
}

/* A header has come: take memory for the body, or wait for some. */
static bool begin_body(bodhi_server *server, connection *c) {
    set_stalled(server, c, !has_room(server, c));
    if (c->stalled) {
        return true;
    }
    begin_deadline(server, c);
    bool goes_on = parsed(server, c, wire_begin(&c->in));
    count_memory(server, c);
    return goes_on;
}

/* Bytes have come; false: the connection ends. */
static bool received(bodhi_server *server, connection *c, size_t n) {
    bool first = c->in.n_header == 0;
    enum wire_result result = wire_took(&c->in, n);
    c->last_byte = now_ms();
    if (result == WIRE_BEGUN) {
        c->silent = false;
        return server->on_header(server, c) && begin_body(server, c);
    }
    if (result == WIRE_MORE && first) {
        begin_deadline(server, c);
    }
    return parsed(server, c, result);
}

void connection_resume(bodhi_server *server, connection *c) {
    c->ending = !begin_body(server, c) || c->ending;
}

/* Read what is there, within bounds, and answer it. False: the other side has gone. */
static bool receive(bodhi_server *server, connection *c) {
    size_t total = 0;
    while (total < TURN_BYTES && listens(server, c) && !server->stopping) {
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
    if (!alive || ((events & (EPOLLERR | EPOLLHUP)) != 0 && (c->ending || c->turn == TURN_WAITING))) {
        connection_drop(server, c);
    } else {
        connection_update(server, c);
    }
}
