/* Reads in order: which connections may read, one sweep of the disk at a time. */
#ifndef BODHI_READ_QUEUE_H
#define BODHI_READ_QUEUE_H

#include "server/server.h"

/* A READ that waits for its turn. False after an error. */
bool turn_wait(bodhi_server *server, connection *c, const int64_t *numbers, size_t n);

/* A connection has read what it was given, or is gone; after the last of a turn the next one begins. */
void turn_end(bodhi_server *server, connection *c);

/* End turns that last too long. */
void turn_tick(bodhi_server *server, int64_t now);

#endif
