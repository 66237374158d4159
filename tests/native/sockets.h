/* What listens, and what comes over a connection. */
#pragma once

#include <netinet/in.h>

#include "check.h"
#include "net/wire.h"

/* A Unix socket that listens at a path; `flags`: SOCK_NONBLOCK, or 0. */
static inline int listen_at(const char *path, int flags) {
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | flags, 0);
    (void)snprintf(name.sun_path, sizeof name.sun_path, "%.107s", path);
    (void)unlink(path);
    CHECK(bind(fd, (struct sockaddr *)&name, sizeof name) == 0 && listen(fd, 16) == 0);
    return fd;
}

/* A socket that listens at a port of this machine, whose name is written; `flags`: SOCK_NONBLOCK, or 0. */
static inline int listen_by_tcp(struct sockaddr_in *name, int flags) {
    socklen_t size = sizeof *name;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | flags, 0);
    *name = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    CHECK(bind(fd, (struct sockaddr *)name, size) == 0 && listen(fd, 16) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)name, &size) == 0);
    return fd;
}

/* What a parser says of bytes, up to the end of a message or an error. */
static inline enum wire_result feed_bytes(wire_parser *parser, const unsigned char *data, size_t n) {
    enum wire_result result = WIRE_MORE;
    for (size_t i = 0; i < n && result == WIRE_MORE; i++) {
        unsigned char *at;
        CHECK(wire_space(parser, &at) > 0);
        *at = data[i];
        result = wire_took(parser, 1);
    }
    return result;
}

/* Receive the next message; false: the other side has closed. */
static inline bool receive_message(int fd, wire_parser *parser) {
    enum wire_result result = WIRE_MORE;
    while (result == WIRE_MORE) {
        unsigned char *at;
        size_t space = wire_space(parser, &at);
        ssize_t got = recv(fd, at, space, 0);
        if (got <= 0) {
            return false;
        }
        result = wire_took(parser, (size_t)got);
        CHECK(result == WIRE_MORE || result == WIRE_MESSAGE);
    }
    return true;
}
