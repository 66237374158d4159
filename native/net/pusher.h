/* A pusher, and what it does with each of its servers: connecting, sending, taking acknowledgements. */
#pragma once

#include <pthread.h>

#include "bodhi.h"
#include "codec/ids.h"
#include "net/link.h"
#include "write/writer.h"

/* A frame in flight, which goes from list to list until it is acknowledged. */
typedef struct slot {
    struct slot *next;
    uint64_t number;
    size_t size;
    bool again;              /* it was given to a server before */
    unsigned char message[]; /* a FRAME: header and body, and room for a MAC */
} slot;

/* A list of slots in the order of their coming. */
typedef struct {
    slot *first, *last;
    int64_t n;
} slot_list;

/* --- The pusher: all of it is under its mutex, but for what never changes and for links, which are their threads' --
 */

/* A server, whose thread connects to it, sends it frames, and takes what it says of them. */
typedef struct {
    bodhi_pusher *pusher;
    char *address;
    wire_link link;   /* fd -1: not connected */
    int wake;         /* an eventfd: there is something to be done */
    bool tried;       /* it was dialled once; those that were not are counted */
    bool refuses;     /* it has refused frames: it gets no more, and is left alone when it has answered for all */
    bool flush_due;   /* a FLUSH is to go behind all frames */
    size_t unsent;    /* bytes of `out` and what is behind it */
    slot_list sent;   /* given to it, and not acknowledged yet */
    slot *out;        /* of these the first that has not all gone yet; NULL: there is none */
    int64_t moved_at; /* when bytes last went, or `out` was given */
    int64_t unasked;  /* bytes sent since the last FLUSH */
    int64_t asked_at; /* when a FLUSH went that was not answered yet; 0: none waits */
    int64_t retry_at;
    int64_t pause_ms;
} server;

/* A store of this machine to which slices go straight, as its server would take them. */
typedef struct {
    bodhi_store *store;
    bodhi_dataset *dataset;
    bodhi_writer *writer; /* NULL: slices go to servers */
    int64_t unflushed_bytes, flushed_at;
} direct_store;

struct bodhi_pusher {
    int64_t slices_of; /* atoms of a frame whose slices are pushed; 0: frames are */
    direct_store direct;
    id_order order; /* of a slice's ids, and its vectors in that order */
    float *vectors;
    size_t n_vectors;
    wire_open open; /* of what follows */
    char name[WIRE_MAX_NAME + 1], identity[WIRE_MAX_NAME + 1];
    unsigned char generation[WIRE_MAX_NAME];
    bodhi_push_options options;
    uint8_t key[KEY_MOST];
    size_t key_bytes; /* 0: none */
    server *servers;  /* in the order of their addresses, whatever it was in the call */
    int n_servers, n_untried;
    uint64_t start; /* the server of frame 0, modulo their number */

    pthread_mutex_t mutex;
    pthread_cond_t changed; /* something that the caller may wait for */
    int holders;            /* threads of servers, and the caller */
    bool closing;
    slot_list waiting; /* to be given to a server */
    int64_t bytes;     /* in flight */
    int64_t moved;     /* bytes of frames sent for the first time */
    int refused;       /* status with which servers refused frames lately, or 0 */
    bool conflict;     /* what is there is of another simulation: nothing more is pushed */
    char reason[1024]; /* what a server said of that; "": nothing */
    int dial_status;   /* of the last server that could not be connected to, and why */
    char dial_message[512];
    bodhi_push_facts facts;
};

/* --- servers.c: the mutex is held, but by who makes a pusher ------------------------------------------------------ */

void slots_append(slot_list *list, slot *s);

/* A slot with a frame, to be freed; NULL: memory is out. */
slot *slots_make(const bodhi_frame *frame);

/* A pusher without servers; NULL: memory is out. */
bodhi_pusher *pusher_new(void);

/* Let go of a pusher, whose mutex is held; who does so last frees it. */
void pusher_let_go(bodhi_pusher *p);

/* Start a server's thread, which holds the pusher. False: there is none to be had. */
bool server_start(server *s);

/* Give the frames that wait to the servers that their numbers name, or to the next ones that take them. */
void servers_give(bodhi_pusher *p);

/* Try servers that are left alone at once: a call waits for them. */
void servers_try(bodhi_pusher *p);

/* Have all servers acknowledge what was sent to them. */
void servers_ask_for_acks(bodhi_pusher *p);

/* Have a server's thread look at what is to be done. */
void server_wake(const server *s);

/* How many threads push in this process, those of abandoned pushers among them, which end soon. */
int servers_running(void);

/* --- slices.c: the caller's thread alone ---------------------------------------------------------------------------
 */

/* The mark that the launcher gives to all processes of one mpiexec or srun; 0: none. */
uint64_t mark_of_launcher(void);

/* The mark that the caller gives, 0 for "". */
uint64_t mark_of_name(const char *name);

/* Make of a dataset's name and generation those in which the slices of a rank of this launch lie. */
BODHI_CHECKED int launch_name_slices(bodhi_pusher *p, const bodhi_slice_options *slices);

/* Open the store for slices. Errors: as bodhi_open(), bodhi_dataset_open() and bodhi_writer_open(), and CONFLICT. */
BODHI_CHECKED int direct_open(bodhi_pusher *p, const bodhi_slice_options *slices);

/* Push a slice; every batch, or second, what was pushed is shown and acknowledged. As bodhi_append() and bodhi_flush().
 */
BODHI_CHECKED int direct_push(bodhi_pusher *p, const bodhi_frame *frame);
BODHI_CHECKED int direct_flush(bodhi_pusher *p);

/* Close without a flush that anybody hears of. */
void direct_close(bodhi_pusher *p);
