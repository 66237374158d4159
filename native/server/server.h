/* The server's state: its connections and the datasets that it has open. All of it is in the loop's thread. */
#pragma once

#include "net/link.h"
#include "server/ingest.h"
#include "server/serve.h"

/* What epoll tells of: pipes, listeners; connections have serials above these. */
enum { EVENT_WAKE, EVENT_INGESTED, N_PIPES, EVENT_LISTENER = N_PIPES, FIRST_SERIAL };

enum right { RIGHT_PUSH = 1, RIGHT_READ = 2 };

/* A dataset that is open: one writer for all who push to it, so that a frame sent twice is stored once. */
typedef struct open_dataset {
    bodhi_dataset *dataset;
    ingest *ingest;          /* of what is pushed to it; NULL: nothing was yet */
    unsigned users;          /* connections */
    unsigned awaited;        /* tasks that will come back */
    int64_t unflushed_since; /* when the first frame came for which there is no FLUSH yet; 0: there is none */
    size_t n_unflushed;      /* of these frames */
    bool durable;            /* some of them are to be stored durably */
    struct open_dataset *next;
} open_dataset;

enum turn { TURN_NONE, TURN_WAITING, TURN_GRANTED };

/* Bytes of a segment that a READ needs: neighbours are one. */
typedef struct {
    bodhi_place at; /* the first record */
    uint64_t end;
} extent;

typedef struct {
    int fd; /* -1: closed */
    uint32_t serial;
    unsigned rights;
    bool remote;                   /* a client of another machine */
    uint8_t proof[NONCE + ANSWER]; /* of another machine's client: both random numbers, and its proof of the key */
    size_t n_proof;                /* there so far of it; until all is, no message is read */
    bool silent;                   /* no whole message has come */
    int64_t begun;                 /* ms: when it came, or a message began or ended, or our side was shut */
    int64_t moved;                 /* ms: when bytes last came or went, or output began to wait */
    size_t memory;                 /* bytes, as they are counted in the server's */
    wire_parser in;                /* without a MAC: a client of this machine */
    wire_output out;
    size_t out_sent;                    /* bytes of it */
    int descriptors[WIRE_MAX_SEGMENTS]; /* to go with the byte at descriptors_at */
    int n_descriptors;
    size_t descriptors_at;
    bool ending;     /* nothing more is read; closed when the output has gone */
    bool shut;       /* our side is shut; we wait for the other's end */
    uint32_t events; /* asked of epoll */

    open_dataset *dataset; /* NULL before OPEN */
    uint32_t flags;

    enum turn turn;
    int64_t *queued; /* frames of a READ that waits for its turn */
    size_t n_queued;
    extent *extents; /* of these frames, in the order of the segments */
    size_t n_extents;
} connection;

struct bodhi_server {
    bodhi_serve_options options;
    bool (*on_message)(bodhi_server *server, connection *c); /* false: the connection is of no more use */
    void (*on_drop)(bodhi_server *server, connection *c);
    bodhi_store *store;
    bodhi_store *looked_at; /* the same, for looking at datasets that are not used thereby */
    int epoll, pipes[N_PIPES][2];
    connection *connections;
    int n_slots;           /* as many as were ever taken */
    size_t memory;         /* bytes of connections */
    atomic_size_t backlog; /* bytes that wait to be written */
    open_dataset *datasets;
    int n_reading; /* connections whose turn it is */
    int64_t reading_deadline;
    bodhi_place position; /* where the last turn began */
    uint64_t counters[N_COUNTERS];
};

/* --- connection.c: their bytes, in and out ------------------------------------------------------------------------ */

/* Take a connection up, or refuse it. One of another machine has no rights until it has proved to have the key. */
void connection_add(bodhi_server *server, int fd, unsigned rights, bool remote);

/* Tell why, where no key is needed for that, and close. */
void connection_refuse(bodhi_server *server, int fd, bool remote, int status, const char *text);

/* epoll has told of a connection. */
void connection_event(bodhi_server *server, connection *c, uint32_t events);

/* Acknowledgements and turns have put output into other connections than the one that was heard: send what waits.
 * Listen again to pushers that waited for memory, if there is some now. */
void connections_update(bodhi_server *server);

/* False: the connection is broken. */
bool connection_send(connection *c);

/* Whether messages take all the memory that they may, so that no client begins to push more. */
bool is_crowded(const bodhi_server *server);

/* Drop those that are late with what they have to send or take. */
void connections_tick(bodhi_server *server);

/* Close at once, without a word. */
void connection_drop(bodhi_server *server, connection *c);

uint64_t connection_id(const bodhi_server *server, const connection *c);

/* Room for so many bytes of the answer that is being made, for which c->out.n_body is to be raised. NULL: memory is
 * out, as output_end() then tells. */
unsigned char *output_room(connection *c, size_t size);

/* Add records or bytes to the answer. */
void output_add(connection *c, const void *data, size_t size);

/* The answer to a verb is complete, with so many records. False: memory is out. */
bool output_end(connection *c, enum wire_verb verb, size_t count);

/* Put an answer that says why there is none into the output; always false. */
bool output_error(connection *c, int status, const char *text);

/* --- open_datasets.c: the datasets that it has open, each once for all its connections ---------------------------- */

/* Open a dataset for a connection, and let go of it. The number of the launch whose slices are pushed is written into
 * `open`. Statuses as bodhi_dataset_open. */
int datasets_acquire(bodhi_server *server, wire_open *open, open_dataset **out);
void datasets_release(bodhi_server *server, open_dataset *d);
void datasets_close_all(bodhi_server *server);

/* Close the datasets that nobody uses, but some. */
void datasets_close_idle(bodhi_server *server);

/* Give a task to the dataset's ingest, which there is. */
void datasets_submit(open_dataset *d, task *t);

/* Have what was pushed written and acknowledged. */
void datasets_flush(open_dataset *d);

/* --- answer.c: what it answers to each verb ----------------------------------------------------------------------- */

/* A whole message has come. False: the connection is of no more use. */
bool answer(bodhi_server *server, connection *c);

/* Tell those who wait for them of the tasks that have come back. */
void answer_done(bodhi_server *server);

/* --- read_queue.c: reads in order, one sweep of the disk at a time ------------------------------------------------ */

/* A READ that waits for its turn. False after an error. */
bool turn_wait(bodhi_server *server, connection *c, const int64_t *numbers, size_t n);

/* A connection has read what it was given, or is gone; after the last of a turn the next one begins. */
void turn_end(bodhi_server *server, connection *c);

/* End turns that last too long. */
void turn_tick(bodhi_server *server, int64_t now);

/* --- contents: what the store has, also for those who may not enter it -------------------------------------------- */

/* The question that a connection has sent; its name is behind it. */
wire_question question_of(const connection *c);

/* Put the places of frames into a connection's output, with descriptors of their segments, up to the first for whose
 * segment there is no room. False after an error. */
bool send_places(bodhi_server *server, connection *c, const int64_t *numbers, size_t n);

/* Put bytes of segments into a connection's output. False after an error. */
bool answer_take(bodhi_server *server, connection *c);

/* Each puts its answer into the connection's output. False after an error. */
bool answer_attachment(connection *c);
bool answer_runs(connection *c);
bool answer_survey(bodhi_server *server, connection *c);
