/* What goes over a socket between the server of a store and its clients: layout and parser, no I/O.
 *
 * A message is a header of 16 bytes and a body. All numbers are little-endian.
 *   magic u32 "BdhW" | version u16 | verb u16 | bytes of the body u32 | 0 u32
 * Between machines 16 bytes follow, by which the message is authenticated (base/mac.h): of header and body, under a key
 * of the session, with its running number among the messages of its side. The parser is fed bytes as they come; it
 * never sees a socket. The length is checked against the verb's own limit before anything is allocated, those 16 bytes
 * before anybody sees the body. A socket of this machine changes no bytes.
 */

/* clang-format off */
/* Clients send:
 * OPEN      flags u32, name, 0, identity (of who pushes), 0, generation
 * FRAME     number u64, time f64, atoms u32, fields u8, has box u8, 0 u16, box 6 f32, the fields' f32, of a slice its
 *           atoms u32
 * FLUSH     nothing: acknowledge all frames sent so far
 * READ      numbers u64; none: the places of the last READ have been read (with reads in order, the next one's turn)
 * TAKE      per extent of a segment: segment u64, offset u64, bytes u32, kind u32
 * RUNS, FETCH, SURVEY, STATUS: a question: first u64, last u64, kind u32, 0 u32, name
 *
 * A server sends answers: status i32, verb that is answered u16, count u16, so many records, and maybe bytes behind
 * them. Where the status is negative a text says why, and the connection ends. Records and bytes are
 * to OPEN   one: native frames u64, alien frames u64, identity 16 bytes, hash of name u64, of generation u64, bytes of
 *           the dataset u64, 1 if reads are put in order u64
 * to FRAME  when a batch is stored, asked or not, per frame: number u64, status i32, 0 u32; then why frames were
 *           refused, as text
 * to READ   per number, from the first on, of one at least and as many as are granted at once: segment u64, offset u64,
 *           length u64, descriptor i32 (-1: not here), kind u8, fields and encoding u8, length of the head u16 (as in the
 *           index); the descriptors come with the first byte of the header (SCM_RIGHTS), in the order of their numbers;
 *           clients of other machines get none, and TAKE what lies there. To a READ of nothing there is no answer
 * to TAKE   per extent the bytes that there are of it u32 (2^32 - 1: the segment is not here); then these bytes
 * to RUNS   of frames of a kind from first to last: first u64, step u64, count u64; WIRE_MAX_RUNS: there may be more
 * to FETCH  of the attachment of this name: its bytes u64 (2^64 - 1: there is none), which file it is u64; then some of
 *           its bytes from first on
 * to SURVEY datasets of this name ("": of any), in the order of their directories, behind that of the hashes first and
 *           last (zeros: from the first on); none: that was the end; see describe() in native/server/contents.c
 * to STATUS counters u64, in the order of enum wire_counter; then the identity of the store (16 bytes), and one a line:
 *           the node's name, and each address that the server was told of, its own among them */
/* clang-format on */

/* Requests are answered in their order, FRAMEs in an order of their own, that of their coming. */
#pragma once

#include "base/bytes.h"
#include "base/mac.h"
#include "bodhi.h"

enum {
    WIRE_VERSION = 9,
    WIRE_HEADER = 16,
    WIRE_OPEN_HEAD = 4,
    WIRE_FRAME_HEAD = 48,
    WIRE_ANSWER_HEAD = 8,
    WIRE_DATASET_HEAD = 64,
    WIRE_MAX_NUMBERS = 16384, /* in one message */
    WIRE_MAX_RUNS = 8192,
    WIRE_DIRECTORY = 33,
    WIRE_MAX_SEGMENTS = 32, /* descriptors with one message */
    WIRE_MAX_TEXT = 1024,
    WIRE_MAX_NAME = 4096,
    WIRE_MAX_PART = 1 << 20,  /* bytes of an attachment, or of generations, at once */
    WIRE_MAX_EXTENTS = 1024,  /* of one TAKE */
    WIRE_MAX_TAKEN = 4 << 20, /* their bytes */
    WIRE_MAX_ANSWER = WIRE_ANSWER_HEAD + 4 * WIRE_MAX_EXTENTS + WIRE_MAX_TAKEN, /* no other one is longer */
    WIRE_MAX_PEERS = 1 << 20
};
#define WIRE_MAX_FRAME (UINT32_C(1) << 30)

enum wire_verb {
    WIRE_OPEN = 1,
    WIRE_FRAME,
    WIRE_FLUSH,
    WIRE_READ,
    WIRE_TAKE,
    WIRE_RUNS,
    WIRE_FETCH,
    WIRE_SURVEY,
    WIRE_STATUS,
    WIRE_ANSWER,
    WIRE_VERBS /* one more than the last */
};

/* Of OPEN: whether frames will be pushed (the dataset is made if it is not there), and stored durably. */
enum wire_flag { WIRE_PUSHES = 1, WIRE_DURABLE = 2 };

enum wire_counter {
    COUNT_PID,
    COUNT_STARTED, /* seconds since 1970 */
    COUNT_CONNECTIONS,
    COUNT_MAX_CONNECTIONS,
    COUNT_ADMITTED,
    COUNT_REFUSED, /* other users, too many connections, malformed messages */
    COUNT_TIMED_OUT,
    COUNT_FRAMES,
    COUNT_FRAME_BYTES,
    COUNT_EXISTING, /* frames pushed that were there */
    COUNT_FAILED,   /* frames pushed that could not be stored */
    COUNT_BATCHES,
    COUNT_READS,  /* requests */
    COUNT_PLACES, /* frames in them */
    COUNT_WAITING,
    COUNT_SERIALIZED,  /* 1: reads are put in order */
    COUNT_SHARED,      /* reads that shared the turn of another's */
    COUNT_TAKEN_BYTES, /* of frames, that went to other machines */
    N_COUNTERS
};

/* What a client may send before it has opened a dataset, when it has, and when it pushes to that. */
enum wire_requests {
    WIRE_ASKS = 1 << WIRE_OPEN | 1 << WIRE_SURVEY | 1 << WIRE_STATUS,
    WIRE_READS = WIRE_ASKS | 1 << WIRE_FLUSH | 1 << WIRE_READ | 1 << WIRE_TAKE | 1 << WIRE_RUNS | 1 << WIRE_FETCH,
    WIRE_SENDS = WIRE_READS | 1 << WIRE_FRAME
};

enum wire_result {
    WIRE_MORE,          /* feed more */
    WIRE_MESSAGE,       /* a message is complete */
    WIRE_BAD_MAGIC,     /* these are not our bytes */
    WIRE_BAD_VERSION,   /* another version of the protocol */
    WIRE_BAD_VERB,      /* unknown, or not taken now */
    WIRE_TOO_LONG,      /* more than the verb may have */
    WIRE_BAD_MAC,       /* not what the other side sent now */
    WIRE_OUT_OF_MEMORY, /* for the body */
};

/* One direction of a connection. Set to zero, with `requests` as wanted, before the first byte. */
typedef struct {
    unsigned requests; /* the verbs of clients that are taken now, as bits; 0: a server's answers */
    unsigned char header[WIRE_HEADER];
    size_t n_header;
    unsigned char *body; /* of the message that is being read or was last complete; aligned for any type */
    uint32_t n_body;     /* there so far */
    uint32_t size;       /* of the body */
    enum wire_verb verb;
    uint16_t version; /* of the last header */
    bool complete;
    mac_stream mac; /* of the other side's messages */
    unsigned char tag[MAC_BYTES];
    size_t n_tag;
} wire_parser;

/* Where the next bytes are to be put, and how many at most: never 0, never beyond this message. wire_took() then says
 * how many were put there. After MESSAGE, verb, body and size hold until the next wire_space(). After any other result
 * but MORE the connection is of no more use. */
size_t wire_space(wire_parser *parser, unsigned char **at);
enum wire_result wire_took(wire_parser *parser, size_t n);

/* Take the body of a complete message away, to be freed by the caller. */
unsigned char *wire_take_body(wire_parser *parser);

/* Whether a message has begun and not ended. */
bool wire_amid(const wire_parser *parser);

/* Free what it does not need before the next message; amid one: nothing. */
void wire_release(wire_parser *parser);

void wire_free(wire_parser *parser);

/* Text for a result that ends a connection, which the first three do not. */
const char *wire_explain(enum wire_result result);

/* A part of a body. */
typedef mac_part wire_part;

/* Write the header of a message with a body of `size` bytes. */
void wire_header(unsigned char out[WIRE_HEADER], enum wire_verb verb, size_t size);

/* Put what authenticates a message, the next one of a stream, behind its `size` bytes of header and body, where there
 * is room for MAC_BYTES; returns the bytes of it all. Of a stream that is not on nothing follows. */
size_t wire_seal(mac_stream *mac, unsigned char *message, size_t size);

/* The other direction: messages, and behind them the body of one that is being made. Set to zero before the first. */
typedef struct {
    unsigned char *bytes;
    size_t n; /* of whole messages */
    size_t capacity;
    size_t n_body; /* there so far of the body */
    bool failed;   /* memory was out for it */
    mac_stream mac;
} wire_output;

/* Room for `size` more bytes of the body, for which `n_body` is to be raised; NULL: memory is out. */
unsigned char *wire_room(wire_output *output, size_t size);

/* The body, which may move as it grows. */
unsigned char *wire_body(const wire_output *output);

/* Add to the body. */
void wire_add(wire_output *output, const void *data, size_t size);

/* End the message. False: memory was out, and there is none. */
bool wire_end(wire_output *output, enum wire_verb verb);

/* Forget the body that is being made. */
void wire_forget(wire_output *output);

/* Forget all, and free it. */
void wire_empty(wire_output *output);

/* --- Bodies: parse functions return false for what no valid client or server sends -------------------------------- */

/* Parsed, its texts are where `body` is. */
typedef struct {
    uint32_t flags;
    const char *name, *identity; /* identity "": not told */
    void *generation;
    size_t generation_bytes;
} wire_open;
bool wire_parse_open(unsigned char *body, size_t size, wire_open *open);

/* A frame as the body of a FRAME; parsed, its arrays are where `body` is, which is aligned for floats. */
uint64_t wire_frame_bytes(const bodhi_frame *frame);
void wire_write_frame(unsigned char *out, const bodhi_frame *frame);
bool wire_parse_frame(unsigned char *body, size_t size, bodhi_frame *frame);

/* These lie in bodies just so. */
typedef struct {
    uint64_t first, last;
    uint32_t kind, zero;
} wire_question;

typedef struct {
    int32_t status;
    uint16_t verb, count;
} wire_answer;

typedef struct {
    uint64_t number;
    int32_t status;
    uint32_t zero;
} wire_ack;

typedef struct {
    uint64_t segment, offset, length;
    int32_t descriptor;
    uint8_t kind, fields;
    uint16_t head;
} wire_place;

typedef struct {
    uint64_t native, alien; /* frames */
    uint8_t identity[16];
    uint64_t dataset, generation; /* hashes */
    uint64_t bytes;
    uint64_t in_turns; /* 0 or 1 */
} wire_opened;

typedef struct {
    uint64_t segment, offset;
    uint32_t size, kind;
} wire_extent;
#define WIRE_GONE UINT32_MAX

_Static_assert(sizeof(wire_ack) == 16 && sizeof(wire_place) == 32 && sizeof(wire_extent) == 24, "there is no padding");
_Static_assert(sizeof(wire_opened) == 64 && sizeof(wire_question) == 24, "nor here");
