/* A server that runs in a thread, and links to it. */
#pragma once

#include "../sockets.h"
#include "net/link.h"
#include "net/served.h"
#include "server/serve.h"

enum { ATOMS = 100, SOON_MS = 3000 };

extern char root[64], home[100], socket_path[100]; /* a folder; in it a store, and where it is served */

/* A server that runs. */
typedef struct {
    bodhi_server *server;
    pthread_t thread;
    int listener, remote;
    char address[32]; /* at which other machines find it */
} running;
extern running own; /* that of `home` at `socket_path` */

running start_at(const char *store, const char *path, bodhi_serve_options options);
void stop_running(running *r);
void end_running(running *r); /* while somebody still pushes to it */

void make_root(void);
void remove_root(void);

/* Say what is tested, and remove the store. */
void begin(const char *what);

/* The same of `own`. */
void start(bodhi_serve_options options);
void stop(void);

wire_link dialled(void);

/* Dial as from another machine, with the key. */
int dial_as_stranger(wire_link *link);
int open_as(wire_link *link, uint32_t flags, const char *name, const char *generation, const char *identity);
wire_link opened(uint32_t flags, const char *name, const char *generation);
int ask(wire_link *link, enum wire_verb verb, const void *body, size_t size);

/* Ask about a name, frames, or (NULL) nothing. */
int question(wire_link *link, enum wire_verb verb, const char *name, uint64_t first, uint64_t last);

/* What frame `number` holds at position i. */
float value_of(int64_t number, int64_t i);
bodhi_frame frame_of(int64_t number, float *positions);
void send_frame(wire_link *link, int64_t number);

/* Wait for ACKs of these frames, and no others; on a busy machine they are more than one. */
void take_acks(wire_link *link, int64_t first, uint32_t n);

/* A dataset of the store, beside the server; closed with the store. */
bodhi_dataset *open_beside(const char *name, const char *generation, int flags);
void close_beside(bodhi_dataset *dataset);

/* A dataset by a link of its own. */
void open_served(served_dataset *d, const char *name, const char *generation);

/* Write to the store, beside the server; an attachment to "/run", generation "one". */
void write_frames(const char *name, const char *generation, int kind, int64_t first, int64_t last);
void write_attachment(const char *name, const unsigned char *data, size_t size);
