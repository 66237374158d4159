/* What the files of actors have in common: their state, what is promised, and what each does. */
#pragma once

#include <pthread.h>

#include "../check.h"
#include "actors.h"
#include "frames.h"
#include "server/serve.h"
#include "write/writer.h"

enum { WRITERS = 3, MOST_SENT = 256 };

/* A writer, and what it has promised: frames as bits. */
typedef struct {
    bodhi_writer *writer; /* NULL: it is not open */
    uint32_t dataset;
    uint64_t appended; /* since its last flush */
    uint64_t shown;    /* flushed before */
} kept_writer;

/* A rank that pushes its slices straight to the store, and what was not acknowledged to it yet, in order. */
typedef struct {
    bodhi_pusher *pusher; /* NULL: it is not open */
    bool durable;
    int64_t sent[MOST_SENT]; /* -1: it may go meanwhile */
    int64_t n_sent, acknowledged;
} straight_rank;

struct actors {
    char root[PATH_BYTES], store_path[PATH_BYTES], socket_path[PATH_BYTES];
    chance *chance;
    int large;
    bodhi_store *store, *other;
    bodhi_dataset *datasets[DATASETS];
    kept_writer writers[WRITERS];
    straight_rank ranks[RANKS];
    bodhi_reader *reader; /* holds segments open */
    int listener;
    bodhi_server *server; /* NULL: none runs */
    pthread_t thread;
    bool evicting; /* by name */
    int actions_to_room;
    bool sync_fails;             /* a server that met it refuses for good, and makes pushers wait */
    pthread_mutex_t mutex;       /* over what follows: the server's threads evict, too */
    uint64_t released[DATASETS]; /* since it was last set to 0 */
};
extern struct actors all;

static inline uint32_t any(uint32_t n) {
    return draw(all.chance, n);
}

/* These frames may go: by order, or because their origin has them. */
void release(uint32_t dataset, uint64_t frames);

/* Frames that were acknowledged durable; whatever was released since released[] was set to 0 is not. */
void require(enum promiser who, uint32_t dataset, uint64_t frames);

void begin_promise(uint32_t dataset);

/* The same of what was pushed, which must be there to be read at once. */
void require_pushed(enum promiser who, uint32_t dataset, uint64_t frames);

/* Whatever can be had of the store; on a full disk that may be nothing. */
bool have_dataset(uint32_t dataset);

void close_dataset(uint32_t dataset);

/* pushing.c */
void stop_server(void);
void push_some(void);
void close_rank(uint32_t rank);
void push_straight(void);

/* keeping.c */
void assemble_some(void);
void copy_some(void);
void read_some(void);
void drop_some(void);
/* What segments a directory has, or all of them (NULL): evict `n` drawn ones, or each (n < 0). */
void evict_segments(bodhi_store *store, const char *directory, int n);
void remove_dataset(void);
