/* A pusher, and what it does with each of its servers: connecting, sending, taking acknowledgements. */
#ifndef BODHI_PUSHER_H
#define BODHI_PUSHER_H

#include <poll.h>

#include "bodhi.h"
#include "codec/ids.h"
#include "net/connect_async.h"
#include "write/direct_push.h"

/* --- slots.c: frames in flight, which go from list to list until they are acknowledged ---------------------------- */

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

void slots_append(slot_list *list, slot *s);

/* The first slot, taken off; NULL: there is none. */
slot *slots_take(slot_list *list);

/* The first slot with this frame before the slot `end` (NULL: of all), taken off; NULL: there is none. */
slot *slots_take_number(slot_list *list, uint64_t number, const slot *end);

/* A slot with a frame, to be freed; NULL: memory is out. */
slot *slots_make(const bodhi_frame *frame);

void slots_free(slot_list *list);

/* --- The pusher --------------------------------------------------------------------------------------------------- */

enum {
    FIRST_PAUSE_MS = 1000, /* before a server that failed is tried again */
    STALLED_MS = 250       /* a server that takes no bytes for so long is left to itself */
};

typedef struct {
    char *address;
    wire_link link;     /* fd -1: not connected */
    dialling *dialling; /* NULL: nobody connects to it now */
    bool refuses;       /* it has refused frames: it gets no more, and is left alone when it has answered for all */
    bool again;         /* all was sent to it again, and nothing acknowledged since */
    uint8_t token[WIRE_TOKEN];
    slot_list sent;   /* to it, and not acknowledged yet */
    slot *out;        /* of these the first that has not all gone yet; NULL: there is none */
    size_t out_bytes; /* of `out`, else of the FLUSH, once its first byte goes; 0: before */
    size_t out_done;  /* of these, that have gone */
    bool flush_due;   /* a FLUSH is to go behind it */
    unsigned char flush[WIRE_HEADER + MAC_BYTES];
    int64_t moved_at; /* when bytes last went */
    int64_t unasked;  /* bytes sent since the last FLUSH */
    int64_t asked_at; /* when a FLUSH went that was not answered yet; 0: none waits */
    int64_t retry_at;
    int64_t pause_ms;
} server;

/* A slice in the order of its ids. */
typedef struct {
    id_order order;
    float *vectors;
    size_t capacity;
} slice_scratch;

struct bodhi_pusher {
    int64_t slices_of;  /* atoms of a frame whose slices are pushed; 0: frames are */
    straight *straight; /* to where, without a server; NULL: to servers */
    slice_scratch scratch;
    wire_open open; /* but for the token, which each server has of its own */
    bodhi_push_options options;
    uint8_t key[KEY_MOST];
    size_t key_bytes; /* 0: none */
    server *servers;  /* in the order of their addresses, whatever it was in the call */
    int n_servers;
    struct pollfd *polled; /* room for all of them */
    uint64_t start;        /* the server of frame 0, modulo their number */
    slot_list waiting;     /* to be given to a server */
    int64_t bytes;         /* in flight */
    int64_t moved;         /* bytes of frames sent for the first time */
    int refused;           /* status with which servers refused frames lately, or 0 */
    bool conflict;         /* what is there is of another simulation: nothing more is pushed */
    char reason[1024];     /* what a server said of that; "": nothing */
    bodhi_push_facts facts;
};

/* Say who pushes; as bodhi_push_options.identity. */
int pusher_set_identity(bodhi_pusher *p, const char *identity);

/* As bodhi_push(), of whatever is pushed. */
int pusher_push(bodhi_pusher *pusher, const bodhi_frame *frame);

/* How long a server may take before it is late. */
int64_t patience_of(const bodhi_pusher *p);

/* Begin to connect to a server; what was sent to it before is then sent again, and goes nowhere else meanwhile. */
void server_begin_dialling(bodhi_pusher *p, server *s, int64_t timeout_ms);

/* Take what came of connecting to a server, which has ended. Errors: as dial_end. */
int server_end_dialling(bodhi_pusher *p, server *s);

/* Whether something is still to go to a server, which then can be given no other frame. */
bool server_is_sending(const server *s);

/* Send it what it takes now. */
void server_send(bodhi_pusher *p, server *s);

/* Ask it to acknowledge what was sent. */
void server_ask_for_acks(bodhi_pusher *p, server *s);

/* Wait up to `wait_ms` until some server can be sent to, has sent something, or has been connected to. */
void servers_await(const bodhi_pusher *p, int64_t wait_ms);

/* Go on with all servers, waiting up to `wait_ms` for the first; try those that are late over a new connection. */
void servers_go_on(bodhi_pusher *p, int64_t wait_ms);

/* --- launch.c: which launch of a simulation this process is of, as all of one mpiexec or srun have it ------------- */

/* A number for what the launcher says of itself; 0: it says nothing. */
uint64_t launch_found(void);

/* A number for what the caller says, "" being nothing. */
uint64_t launch_named(const char *name);

#endif
