/* Inside the server: its connections, the datasets that it holds open, and what it answers. serve.c is the loop,
 * connection.c moves bytes, answer.c knows the verbs, turns.c puts reads in order, held.c knows the store, and keep.c
 * writes to it in threads of their own. All else is in the loop's thread. */
#ifndef BODHI_ANSWER_H
#define BODHI_ANSWER_H

#include <stdbool.h>
#include <stdint.h>

#include "server/ingest.h"
#include "server/serve.h"

/* What epoll tells of; connections have serials above these. */
enum { EVENT_WAKE, EVENT_ADMITTED, EVENT_KEPT, EVENT_LISTENER, FIRST_SERIAL };

enum right { RIGHT_PUSH = 1, RIGHT_READ = 2, RIGHT_STOP = 4 };

/* A dataset that is held open: one writer for all who push to it, so that a frame sent twice is kept once. */
typedef struct held {
    bodhi_dataset *dataset;
    keeper *keeper;   /* of what is pushed to it; NULL: nothing was yet */
    unsigned users;   /* connections */
    unsigned awaited; /* tasks that will come back */
    int64_t since;    /* when the first frame came for which there is no FLUSH yet; 0: there is none */
    size_t n_pushed;  /* of these frames */
    bool durable;     /* some of them are to be kept durably */
    struct held *next;
} held;

enum turn { TURN_NONE, TURN_WAITING, TURN_GRANTED };

/* Bytes of a segment that a READ needs: neighbours are one. */
typedef struct {
    bodhi_place at; /* the first record */
    uint64_t end;
} extent;

typedef struct {
    int fd; /* -1: this slot is free */
    uint32_t serial;
    unsigned rights;
    wire_parser in;
    unsigned char *out;
    size_t n_out, out_sent, out_capacity;
    int descriptors[WIRE_MAX_SEGMENTS]; /* to go with the byte at descriptors_at */
    int n_descriptors;
    size_t descriptors_at;
    int64_t in_deadline, out_deadline; /* ms; 0: none */
    bool ending;                       /* nothing more is read; closed when the output has gone */
    bool shut;                         /* our side is shut; we wait for the other's end */
    uint32_t events;                   /* asked of epoll */

    held *dataset; /* NULL before OPEN */
    uint32_t flags;
    uint8_t token[WIRE_TOKEN];
    bool asked; /* a HAVE is under way; nothing more is read before its answer */

    enum turn turn;
    int64_t *wanted; /* frames of a READ that waits for its turn */
    size_t n_wanted;
    extent *extents; /* of these frames, in the order of the segments */
    size_t n_extents;
} connection;

struct bodhi_server {
    bodhi_serve_options options;
    uint32_t *allowed;
    bodhi_store *store;
    int epoll, wake[2], admitted[2], kept[2];
    bool deaf; /* no descriptor was left to accept a connection with; tried again at the next tick */
    connection *connections;
    int n_slots;
    held *datasets;
    int n_reading; /* connections whose turn it is */
    int64_t reading_deadline;
    bodhi_place position; /* where the last turn began */
    bool stopping;
    uint64_t counters[N_COUNTERS];
};

int64_t now_ms(void);

/* --- held.c ------------------------------------------------------------------------------------------------------ */

/* Open a dataset for a connection, and let go of it. Statuses as bodhi_dataset_open. */
int held_open(bodhi_server *server, const wire_open *open, held **out);
void held_release(bodhi_server *server, held *h);
void held_close_all(bodhi_server *server);

/* Close the datasets that nobody uses, but some. */
void held_close_idle(bodhi_server *server);

/* Give a task to the dataset's keeper, which there is. */
void held_give(held *h, task *t);

/* Have what was pushed kept and acknowledged. */
void held_flush(held *h);

/* A descriptor of the segment of a place, which is not evicted while it is open; -1 if it is gone. */
int open_segment(const bodhi_dataset *dataset, const bodhi_place *at);

/* The answers of HELD; only the first `n_known` are known of. */
void held_say(const bodhi_place *places, size_t n_known, size_t n, unsigned char *answers);

/* Where the frames lie, with descriptors of up to `capacity` segments; what has no place has descriptor -1. */
void held_places(held *h, const int64_t *numbers, size_t n, wire_place *places, int *descriptors, int capacity,
                 int *n_descriptors);

/* --- answer.c ---------------------------------------------------------------------------------------------------- */

/* A whole message has come. False: the connection is of no more use. */
bool answer(bodhi_server *server, connection *c);

/* Put an ERROR into the output; always false. */
bool answer_error(connection *c, int status, const char *text);

/* Tell those who wait for them of the tasks that have come back. */
void answer_done(bodhi_server *server);

/* Put the places of the frames that a connection wants into its output. */
bool answer_places(bodhi_server *server, connection *c, const int64_t *numbers, size_t n);

/* --- turns.c ----------------------------------------------------------------------------------------------------- */

/* A READ that waits for its turn. */
bool turn_ask(bodhi_server *server, connection *c, const int64_t *numbers, size_t n);

/* What this connection was given to read is read, or the connection is gone; when that holds for all whose turn it is,
 * it is the next ones'. */
void turn_end(bodhi_server *server, connection *c);

/* End turns that last too long. */
void turn_tick(bodhi_server *server, int64_t now);

/* --- connection.c ------------------------------------------------------------------------------------------------ */

connection *connection_add(bodhi_server *server, int fd, unsigned rights);

/* Tell why and close. */
void connection_refuse(bodhi_server *server, int fd, int status, const char *text);

/* epoll has told of a connection. */
void connection_heard(bodhi_server *server, connection *c, uint32_t events);

/* Send what waits; close what has ended; ask epoll for what is waited for. */
void connection_settle(bodhi_server *server, connection *c);

/* False: the connection is broken. */
bool connection_send(const bodhi_server *server, connection *c);

/* Close at once, without a word. */
void connection_drop(bodhi_server *server, connection *c);

/* Whether it is late with what it has to send or take. */
bool connection_is_late(const connection *c, int64_t now);

uint64_t connection_id(const bodhi_server *server, const connection *c);

/* Room for a message of `size` bytes of body in the output: where the body goes, to be followed by output_done(). NULL:
 * memory is out. */
unsigned char *output_body(connection *c, size_t size);
void output_done(connection *c, enum wire_verb verb, size_t size);

#endif
