/* Inside the server: its connections, the datasets that it holds open, and what it answers. serve.c moves bytes and
 * keeps deadlines, answer.c knows the verbs, held.c the store. */
#ifndef BODHI_ANSWER_H
#define BODHI_ANSWER_H

#include <stdbool.h>
#include <stdint.h>

#include "serve.h"

enum right { RIGHT_PUSH = 1, RIGHT_READ = 2, RIGHT_STOP = 4 };

/* A dataset that is held open: one writer for all who push to it, so that a frame sent twice is kept once. */
typedef struct held {
    bodhi_dataset *dataset;
    bodhi_writer *writer; /* NULL: none is open */
    unsigned users;       /* connections */
    int64_t since;        /* when the first frame came that is not acknowledged; 0: there is none */
    bool durable;         /* some of these are to be kept durably */
    bool doubtful;        /* an append failed since the last flush: frames before it may be undone */
    bool sync_failed;     /* what is on disk is not known any more */
    struct held *next;
} held;

enum turn { TURN_NONE, TURN_WAITING, TURN_GRANTED };

typedef struct {
    uint64_t number;
    int32_t status; /* of appending it */
} pushed;

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
    pushed *pushed; /* not acknowledged yet */
    size_t n_pushed;

    enum turn turn;
    int64_t *wanted; /* frames of a READ that waits for its turn */
    size_t n_wanted;
    uint64_t position[2]; /* segment and offset of its first record */
} connection;

struct bodhi_server {
    bodhi_serve_options options;
    uint32_t *allowed;
    bodhi_store *store;
    int epoll, wake[2], admitted[2];
    connection *connections;
    int n_slots;
    held *datasets;
    connection *reading; /* whose turn it is */
    int64_t reading_deadline;
    uint64_t position[2]; /* of the last turn */
    bool stopping;
    uint64_t counters[N_COUNTERS];
};

int64_t now_ms(void);

/* --- held.c ------------------------------------------------------------------------------------------------------ */

/* Open a dataset for a connection, and let go of it. Statuses as bodhi_dataset_open. */
int held_open(bodhi_server *server, const wire_open *open, held **out);
void held_release(bodhi_server *server, held *h);
void held_close_all(bodhi_server *server);

/* Append a frame natively; the status is that of bodhi_append. `durable`: it will be flushed so. */
int held_append(held *h, const bodhi_frame *frame, bool durable);

/* Make what was appended visible. `frames[i].status` becomes OK, EXISTS or an error for each of `n`: this is their
 * acknowledgement, and true only of what is kept (with `durable`: on disk). `flushed` is what held_flush() returned. */
int held_flush(held *h, bool durable);
void held_judge(held *h, pushed *frames, size_t n, int flushed, bool durable);

/* Which of `n` frames are kept, as in HELD; with `durable` only what is on disk. */
void held_have(held *h, const int64_t *numbers, size_t n, bool durable, unsigned char *answers);

/* Where the frames lie, with descriptors of up to `capacity` segments; what has no place has descriptor -1. */
void held_places(held *h, const int64_t *numbers, size_t n, wire_place *places, int *descriptors, int capacity,
                 int *n_descriptors);

/* Segment and offset of the first record in the order of the segments. */
void held_position(held *h, const int64_t *numbers, size_t n, uint64_t position[2]);

/* --- answer.c ---------------------------------------------------------------------------------------------------- */

/* A whole message has come. False: the connection is of no more use. */
bool answer(bodhi_server *server, connection *c);

/* Put an ERROR into the output; always false. */
bool answer_error(connection *c, int status, const char *text);

/* Flush a dataset and acknowledge to all who wait for it. */
void acknowledge(bodhi_server *server, held *h);

/* The read whose turn it was is over, or its connection is: the next one's turn. */
void end_turn(bodhi_server *server);

/* --- serve.c ----------------------------------------------------------------------------------------------------- */

/* Room for a message of `size` bytes of body in the output: where the body goes, to be followed by output_done(). NULL:
 * memory is out. */
unsigned char *output_body(connection *c, size_t size);
void output_done(connection *c, enum wire_verb verb, size_t size);

/* Close at once, without a word. */
void drop(bodhi_server *server, connection *c);

#endif
