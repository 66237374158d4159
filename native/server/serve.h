/* The server of a store: an event loop in one thread. */
#pragma once

#include "bodhi.h"
#include "net/wire.h"

typedef struct bodhi_server bodhi_server;

typedef struct bodhi_serve_options {
    int listener;       /* a listening Unix socket, or -1; the server does not close it */
    int remote;         /* a listening TCP socket, of no matter where `key` is NULL; as `listener` */
    const uint8_t *key; /* what clients that come to it must have; the caller's until the server is closed */
    size_t key_bytes;
    const uint32_t *allowed; /* other users who may read; the caller's until the server is closed */
    int64_t n_allowed;
    int32_t serialize_reads; /* 1: reads get their places one at a time, in the order of the segments */
    int32_t max_connections; /* of which others than the owner on this machine have half; 0: 4096 */
    int32_t message_ms;      /* for a message to come or go, besides 1 ms a kilobyte; 0: 30000 */
    int32_t idle_ms;         /* between messages; 0: an hour */
    int32_t batch_ms;        /* after which pushed frames are acknowledged unasked; 0: 1000 */
    int64_t quota;           /* bytes that the store may hold; 0: no limit */
    int64_t memory;          /* bytes for messages that come, wait or go; 0: 512 MiB */
    const char *peers;       /* what STATUS tells behind the identity, of WIRE_MAX_PEERS bytes at most; as `allowed` */
} bodhi_serve_options;

/* Open the store (made if it is not there) and what the loop needs. Errors: as bodhi_open. */
BODHI_CHECKED int bodhi_server_open(const char *directory, const bodhi_serve_options *options, bodhi_server **server);

/* Run until bodhi_server_wake() is written to; may be called again. */
BODHI_CHECKED int bodhi_server_run(bodhi_server *server);

/* A non-blocking descriptor to write a byte to, from a signal handler or another thread. */
int bodhi_server_wake(const bodhi_server *server);

/* Write and acknowledge what was pushed, and end. Closing NULL is allowed. */
void bodhi_server_close(bodhi_server *server);
