/* A client's connection to a server; see link.h. Admission is told of in docs/server.md. */
#include "net/link.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/io.h"
#include "base/status.h"
#include "base/threads.h"

enum { STEP_MS = 200, FULL_MS = 5 };

/* --- The key ----------------------------------------------------------------------------------------------------- */

static int check_key_file(int fd, const char *path) {
    struct stat status;
    if (bodhi_io.fstat(fd, &status) != 0) {
        return bodhi_fail_system(errno, "fstat", path);
    }
    if (!S_ISREG(status.st_mode) || status.st_uid != geteuid() || (status.st_mode & 077) != 0) {
        return bodhi_fail(BODHI_ERROR_UNSAFE,
                          "the key file %s is of user %u with mode %o; it must be a file of user %u with mode 600",
                          path, (unsigned)status.st_uid, (unsigned)(status.st_mode & 07777), (unsigned)geteuid());
    }
    return BODHI_OK;
}

int link_read_key(const char *path, uint8_t key[KEY_MOST], size_t *size) {
    int status = mac_find();
    if (status != BODHI_OK) {
        return status;
    }
    int fd = io_open(AT_FDCWD, path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) {
        return bodhi_fail_system(errno, "open of the key file", path);
    }
    status = check_key_file(fd, path);
    ssize_t got = status == BODHI_OK ? io_read(fd, key, KEY_MOST, 0, READ_ANY) : 0;
    if (got < 0) {
        status = bodhi_fail_system(errno, "read of the key file", path);
    }
    io_drop(fd);
    while (got > 0 && strchr(" \t\r\n", key[got - 1]) != NULL) {
        got--;
    }
    if (status == BODHI_OK && (got < KEY_LEAST || got == KEY_MOST)) {
        status = bodhi_fail(BODHI_ERROR_ARGUMENT, "the key file %s has %zd bytes; a key has %d to %d", path, got,
                            KEY_LEAST, KEY_MOST - 1);
    }
    *size = (size_t)got;
    return status;
}

/* --- Waiting ----------------------------------------------------------------------------------------------------- */

static int unreachable(const wire_link *link, const char *what) {
    if (link->was_interrupted) {
        return bodhi_fail(BODHI_ERROR_INTERRUPTED, "%s: interrupted while waiting", link->address);
    }
    return bodhi_fail(BODHI_ERROR_UNREACHABLE, "%s: %s", link->address, what);
}

static bool is_interrupted(wire_link *link) {
    bool interrupted = link->interrupted != NULL && link->interrupted() != 0;
    link->was_interrupted = link->was_interrupted || interrupted;
    return interrupted;
}

/* Wait for the socket; false if the deadline has passed or somebody interrupts, or wakes who waits for bytes. */
static bool await(wire_link *link, short events, int64_t deadline) {
    for (;;) {
        int64_t left = deadline - now_ms();
        int64_t most = link->interrupted == NULL ? left : STEP_MS;
        int wake = link->wake != NULL && events == POLLIN ? *link->wake : -1; /* which poll() passes over */
        struct pollfd polled[] = {{.fd = link->fd, .events = events}, {.fd = wake, .events = POLLIN}};
        int n = bodhi_io.poll(polled, 2, left < 0 ? 0 : left > most ? (int)most : (int)left);
        if (is_interrupted(link)) {
            return false;
        }
        if (n > 0) {
            return polled[0].revents != 0;
        }
        if (left <= 0 && (n == 0 || errno != EINTR)) {
            return false;
        }
    }
}

/* What a call means that moved no bytes (0, or -1 and errno). OK: try again, it may. END: the deadline has passed. */
static int await_more(wire_link *link, ssize_t moved, short events, int64_t deadline) {
    if (moved < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
        return await(link, events, deadline) ? BODHI_OK
               : link->was_interrupted       ? unreachable(link, "interrupted")
                                             : BODHI_END;
    }
    return moved < 0 && errno == EINTR ? BODHI_OK : unreachable(link, "the server has closed the connection");
}

int link_send(wire_link *link, const void *data, size_t size, int64_t deadline) {
    for (size_t done = 0; done < size;) {
        ssize_t sent = bodhi_io.send(link->fd, (const char *)data + done, size - done, MSG_NOSIGNAL | MSG_DONTWAIT);
        int status = sent > 0 ? BODHI_OK : await_more(link, sent, POLLOUT, deadline);
        if (status != BODHI_OK) {
            return status == BODHI_END ? unreachable(link, "the server takes nothing") : status;
        }
        done += sent > 0 ? (size_t)sent : 0;
    }
    return BODHI_OK;
}

/* Receive exactly `size` bytes. */
static int receive_bytes(wire_link *link, void *data, size_t size, int64_t deadline) {
    for (size_t done = 0; done < size;) {
        ssize_t got = bodhi_io.recv(link->fd, (char *)data + done, size - done, MSG_DONTWAIT);
        int status = got > 0 ? BODHI_OK : await_more(link, got, POLLIN, deadline);
        if (status != BODHI_OK) {
            return status == BODHI_END ? unreachable(link, "no answer in time") : status;
        }
        done += got > 0 ? (size_t)got : 0;
    }
    return BODHI_OK;
}

/* --- Dialling ---------------------------------------------------------------------------------------------------- */

/* Connect within the deadline; false with link->fd closed. */
static bool connect_to(wire_link *link, const struct sockaddr *name, socklen_t size, int64_t deadline) {
    int error = 0;
    socklen_t error_size = sizeof error;
    link->fd = bodhi_io.socket(name->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (link->fd < 0) {
        return false;
    }
    int result = bodhi_io.connect(link->fd, name, size);
    while (result != 0 && errno == EAGAIN && name->sa_family == AF_UNIX && now_ms() < deadline &&
           !is_interrupted(link)) {
        (void)bodhi_io.poll(NULL, 0, FULL_MS); /* many dial at once, and the server has not taken them yet */
        result = bodhi_io.connect(link->fd, name, size);
    }
    bool there = result == 0 || ((errno == EINPROGRESS || errno == EINTR) && await(link, POLLOUT, deadline) &&
                                 getsockopt(link->fd, SOL_SOCKET, SO_ERROR, &error, &error_size) == 0 && error == 0);
    if (!there) {
        io_drop(link->fd);
        link->fd = -1;
    }
    return there;
}

static int dial_local(wire_link *link, uid_t owner, int64_t deadline) {
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    size_t size = strlen(link->address);
    if (size >= sizeof name.sun_path) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT, "the socket's path %s has %zu bytes; this system takes %zu",
                          link->address, size, sizeof name.sun_path - 1);
    }
    memcpy(name.sun_path, link->address, size);
    if (!connect_to(link, (struct sockaddr *)&name, sizeof name, deadline)) {
        return unreachable(link, "no server listens there");
    }
    struct ucred peer;
    socklen_t peer_size = sizeof peer;
    if (getsockopt(link->fd, SOL_SOCKET, SO_PEERCRED, &peer, &peer_size) != 0 || peer.uid != owner) {
        return bodhi_fail(BODHI_ERROR_UNSAFE, "%s: who listens there is not user %u", link->address, (unsigned)owner);
    }
    return BODHI_OK;
}

void link_keep_alive(int fd) {
    const struct {
        int level, name, value;
    } options[] = {{SOL_SOCKET, SO_KEEPALIVE, 1},          {IPPROTO_TCP, TCP_KEEPIDLE, 20},
                   {IPPROTO_TCP, TCP_KEEPINTVL, 10},       {IPPROTO_TCP, TCP_KEEPCNT, 3},
                   {IPPROTO_TCP, TCP_USER_TIMEOUT, 50000}, {IPPROTO_TCP, TCP_NODELAY, 1}};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        (void)setsockopt(fd, options[i].level, options[i].name, &options[i].value, sizeof options[i].value);
    }
}

static int dial_remote(wire_link *link, int64_t deadline) {
    char host[256];
    const char *colon = strrchr(link->address, ':');
    size_t size = colon == NULL ? 0 : (size_t)(colon - link->address);
    if (size == 0 || size >= sizeof host || colon[1] == '\0') {
        return bodhi_fail(BODHI_ERROR_ARGUMENT, "%s is neither host:port nor the path of a socket", link->address);
    }
    bool bracketed = link->address[0] == '[' && colon[-1] == ']';
    (void)snprintf(host, sizeof host, "%.*s", (int)(bracketed ? size - 2 : size), link->address + bracketed);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *addresses = NULL;
    int error = getaddrinfo(host, colon + 1, &hints, &addresses);
    if (error != 0) {
        return unreachable(link, gai_strerror(error));
    }
    bool there = false;
    for (const struct addrinfo *at = addresses; at != NULL && !there; at = at->ai_next) {
        there = connect_to(link, at->ai_addr, at->ai_addrlen, deadline);
    }
    freeaddrinfo(addresses);
    if (!there) {
        return unreachable(link, "no server listens there");
    }
    link_keep_alive(link->fd);
    return BODHI_OK;
}

int link_prove(const uint8_t *key, size_t key_bytes, const char *side, const uint8_t nonces[2 * NONCE],
               uint8_t out[HMAC_BYTES]) {
    const mac_part parts[] = {{side, strlen(side)}, {nonces, (size_t)2 * NONCE}};
    return mac_hmac(key, key_bytes, parts, 2, out);
}

static int be_admitted(wire_link *link, const uint8_t *key, size_t key_bytes, int64_t deadline) {
    uint8_t greeting[GREETING];
    uint8_t nonces[2 * NONCE];
    uint8_t answer[ANSWER];
    uint8_t reply[REPLY];
    uint8_t expected[HMAC_BYTES];
    int status = receive_bytes(link, greeting, sizeof greeting, deadline);
    if (status != BODHI_OK) {
        return status;
    }
    if (memcmp(greeting, WORD_FULL, WORD) == 0) {
        return bodhi_fail(BODHI_ERROR_BUSY, "%s: no more connections; 'himach cache start --connections' allows more",
                          link->address);
    }
    if (memcmp(greeting, WORD_WELCOME, WORD) != 0) {
        return bodhi_fail(BODHI_ERROR_PROTOCOL, "%s: what listens there is no frame server", link->address);
    }
    if (!io_random(answer, NONCE)) {
        return bodhi_fail_system(errno, "getrandom", link->address);
    }
    memcpy(nonces, greeting + WORD, NONCE);
    memcpy(nonces + NONCE, answer, NONCE);
    status = link_prove(key, key_bytes, "client", nonces, answer + NONCE);
    status = status == BODHI_OK ? link_send(link, answer, sizeof answer, deadline) : status;
    status = status == BODHI_OK ? receive_bytes(link, reply, sizeof reply, deadline) : status;
    status = status == BODHI_OK ? link_prove(key, key_bytes, "server", nonces, expected) : status;
    if (status != BODHI_OK) {
        return status;
    }
    if (get32(reply) != 0) {
        return bodhi_fail(BODHI_ERROR_UNSAFE, "%s: the server refuses the key", link->address);
    }
    if (!mac_is_same(expected, reply + 4, HMAC_BYTES)) {
        return bodhi_fail(BODHI_ERROR_UNSAFE, "%s: the server does not have the key itself", link->address);
    }
    status = link_prove(key, key_bytes, "session", nonces, expected);
    if (status == BODHI_OK) {
        mac_begin(&link->out.mac, expected, true);
        mac_begin(&link->in.mac, expected, false);
    }
    explicit_bzero(expected, sizeof expected);
    return status;
}

int link_dial(wire_link *link, char *address, uid_t owner, const uint8_t *key, size_t key_bytes, int64_t deadline) {
    *link = (wire_link){.address = address, .fd = -1, .interrupted = link->interrupted};
    bool local = strchr(address, '/') != NULL;
    if (!local && key == NULL) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT, "%s: a server of another machine needs a key file", address);
    }
    int status = local ? dial_local(link, owner, deadline) : dial_remote(link, deadline);
    if (status == BODHI_OK && !local) {
        status = be_admitted(link, key, key_bytes, deadline);
    }
    if (status != BODHI_OK) {
        link_close(link);
    }
    return status;
}

void link_close(wire_link *link) {
    while (link->n_descriptors > 0) {
        io_drop(link->descriptors[--link->n_descriptors]);
    }
    io_drop(link->fd);
    link->fd = -1;
    link->was_interrupted = false; /* asked again, it is just closed */
    wire_free(&link->in);
    wire_empty(&link->out);
}

/* --- Messages ---------------------------------------------------------------------------------------------------- */

int link_send_message(wire_link *link, enum wire_verb verb, const wire_part *parts, int n, int64_t deadline) {
    link->out.n = 0; /* the last one has gone */
    for (int i = 0; i < n; i++) {
        wire_add(&link->out, parts[i].data, parts[i].size);
    }
    return wire_end(&link->out, verb) ? link_send(link, link->out.bytes, link->out.n, deadline) : bodhi_fail_memory();
}

/* Keep the descriptors that came along; those too many are closed. */
static void take_descriptors(wire_link *link, struct msghdr *message) {
    for (struct cmsghdr *at = CMSG_FIRSTHDR(message); at != NULL; at = CMSG_NXTHDR(message, at)) {
        if (at->cmsg_level != SOL_SOCKET || at->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        size_t n = (at->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < n; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(at) + i * sizeof fd, sizeof fd);
            if (link->n_descriptors < WIRE_MAX_SEGMENTS) {
                link->descriptors[link->n_descriptors++] = fd;
            } else {
                io_drop(fd);
            }
        }
    }
}

/* Receive what is there, at most up to the end of the message. */
static ssize_t receive_some(wire_link *link) {
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int) * WIRE_MAX_SEGMENTS)];
    } control;
    unsigned char *at;
    size_t space = wire_space(&link->in, &at);
    struct iovec part = {.iov_base = at, .iov_len = space};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t got = bodhi_io.recvmsg(link->fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got > 0) {
        take_descriptors(link, &message);
    }
    return got;
}

/* What the answer that was received says; its status is an error where it is negative. */
static int take_answer(wire_link *link) {
    wire_answer head;
    memcpy(&head, link->in.body, sizeof head);
    link->verb = head.verb;
    link->count = head.count;
    link->records = link->in.body + sizeof head;
    link->n_bytes = link->in.size - sizeof head;
    return head.status >= 0
               ? BODHI_OK
               : bodhi_fail(head.status, "%s: %.*s", link->address, (int)link->n_bytes, (const char *)link->records);
}

int link_receive(wire_link *link, int64_t deadline) {
    for (;;) {
        ssize_t got = receive_some(link);
        int status = got > 0 ? BODHI_OK : await_more(link, got, POLLIN, deadline);
        if (status != BODHI_OK) {
            return status;
        }
        enum wire_result result = got > 0 ? wire_took(&link->in, (size_t)got) : WIRE_MORE;
        if (result == WIRE_MESSAGE) {
            return take_answer(link);
        }
        if (result != WIRE_MORE) {
            return bodhi_fail(BODHI_ERROR_PROTOCOL, "%s: %s", link->address, wire_explain(result));
        }
    }
}

static int misfit(const wire_link *link) {
    return bodhi_fail(BODHI_ERROR_PROTOCOL, "%s: an answer that does not fit the question", link->address);
}

int link_answer(wire_link *link, enum wire_verb verb, int64_t deadline) {
    int status = link_receive(link, deadline);
    if (status == BODHI_END) {
        return unreachable(link, "no answer in time");
    }
    return status == BODHI_OK && link->verb != verb ? misfit(link) : status;
}

int link_ask(wire_link *link, enum wire_verb verb, const wire_part *parts, int n, int64_t deadline) {
    int sent = link_send_message(link, verb, parts, n, deadline);
    /* A server that refuses may say why and close before it has read the request. */
    int status = link_answer(link, verb, deadline);
    return status == BODHI_OK ? sent : status;
}

int link_open(wire_link *link, const wire_open *open, wire_opened *opened, int64_t deadline) {
    wire_part parts[] = {{&open->flags, sizeof open->flags},
                         {open->name, strlen(open->name) + 1},
                         {open->identity, strlen(open->identity) + 1},
                         {open->generation, open->generation_bytes}};
    int status = link_ask(link, WIRE_OPEN, parts, 4, deadline);
    if (status == BODHI_OK && link->n_bytes != sizeof *opened) {
        return misfit(link);
    }
    if (status == BODHI_OK && opened != NULL) {
        memcpy(opened, link->records, sizeof *opened);
    }
    return status;
}
