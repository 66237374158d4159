/* Layout and parser of the messages between server and clients; see wire.h. */
#include "net/wire.h"

#include <stdlib.h>
#include <string.h>

#include "base/crc32c.h"
#include "base/memory.h"
#include "segments/record.h"

#define MAGIC_WIRE 0x57686442U /* "BdhW" */

/* --- Limits of the verbs ----------------------------------------------------------------------------------------- */

/* How long the body of a verb may be: at least `least`, at most `most`, in steps of `unit`. */
typedef struct {
    uint32_t least, most, unit;
} verb_limits;

#define QUESTION                                                                                                       \
    { sizeof(wire_question), sizeof(wire_question) + WIRE_MAX_NAME, 1 }

static const verb_limits limits[WIRE_VERBS] = {
    [WIRE_OPEN] = {WIRE_OPEN_HEAD + 3, WIRE_OPEN_HEAD + 3 * WIRE_MAX_NAME + 2, 1},
    [WIRE_FRAME] = {WIRE_FRAME_HEAD + 12, WIRE_MAX_FRAME, 4},
    [WIRE_FLUSH] = {0, 0, 1},
    [WIRE_READ] = {0, 8 * WIRE_MAX_NUMBERS, 8},
    [WIRE_TAKE] = {sizeof(wire_extent), sizeof(wire_extent) * WIRE_MAX_EXTENTS, sizeof(wire_extent)},
    [WIRE_RUNS] = QUESTION,
    [WIRE_FETCH] = QUESTION,
    [WIRE_SURVEY] = QUESTION,
    [WIRE_STATUS] = QUESTION,
    [WIRE_ANSWER] = {WIRE_ANSWER_HEAD, WIRE_MAX_ANSWER, 1},
};

/* --- Parser ------------------------------------------------------------------------------------------------------ */

/* A header is complete: check all of it before memory is taken. */
static enum wire_result check_header(wire_parser *parser) {
    const unsigned char *h = parser->header;
    unsigned verb = h[6] | (unsigned)h[7] << 8;
    parser->version = (uint16_t)(h[4] | (unsigned)h[5] << 8);
    parser->size = get32(h + 8);
    if (get32(h) != MAGIC_WIRE) {
        return WIRE_BAD_MAGIC;
    }
    if (parser->version != WIRE_VERSION) {
        return WIRE_BAD_VERSION;
    }
    unsigned taken = parser->requests != 0 ? parser->requests : 1U << WIRE_ANSWER;
    if (verb >= WIRE_VERBS || (taken >> verb & 1U) == 0) {
        return WIRE_BAD_VERB;
    }
    const verb_limits *l = &limits[verb];
    parser->verb = (enum wire_verb)verb;
    if (parser->size < l->least || parser->size > l->most || parser->size % l->unit != 0) {
        return WIRE_TOO_LONG;
    }
    return WIRE_MORE;
}

/* Once the body is complete, what follows it tells whether the other side sent it, and now. */
static enum wire_result end_body(wire_parser *parser) {
    if (parser->n_body < parser->size || (parser->mac.on && parser->n_tag < MAC_BYTES)) {
        return WIRE_MORE;
    }
    const mac_part parts[] = {{parser->header, WIRE_HEADER}, {parser->body, parser->size}};
    parser->complete = !parser->mac.on || mac_is_next(&parser->mac, parts, 2, parser->tag) || bodhi_bypass_checksums;
    return parser->complete ? WIRE_MESSAGE : WIRE_BAD_MAC;
}

static enum wire_result begin_body(wire_parser *parser) {
    parser->n_body = 0;
    parser->n_tag = 0;
    unsigned char *body = realloc(parser->body, parser->size > 0 ? parser->size : 1); /* much cheaper than a new one */
    if (body == NULL) {
        parser->n_header = 0; /* there is no body to put bytes into */
        return WIRE_OUT_OF_MEMORY;
    }
    parser->body = body;
    return end_body(parser);
}

size_t wire_space(wire_parser *parser, unsigned char **at) {
    if (parser->complete) {
        parser->complete = false;
        parser->n_header = 0;
    }
    if (parser->n_header < WIRE_HEADER) {
        *at = parser->header + parser->n_header;
        return WIRE_HEADER - parser->n_header;
    }
    bool is_body = parser->n_body < parser->size;
    *at = is_body ? parser->body + parser->n_body : parser->tag + parser->n_tag;
    return is_body ? parser->size - parser->n_body : MAC_BYTES - parser->n_tag;
}

enum wire_result wire_took(wire_parser *parser, size_t n) {
    if (parser->n_header == WIRE_HEADER) {
        bool is_body = parser->n_body < parser->size;
        parser->n_body += is_body ? (uint32_t)n : 0;
        parser->n_tag += is_body ? 0 : n;
        return end_body(parser);
    }
    parser->n_header += n;
    if (parser->n_header < WIRE_HEADER) {
        return WIRE_MORE;
    }
    enum wire_result result = check_header(parser);
    if (result != WIRE_MORE) {
        parser->n_header = 0;
        return result;
    }
    return begin_body(parser);
}

unsigned char *wire_take_body(wire_parser *parser) {
    unsigned char *body = parser->body;
    parser->body = NULL;
    return body;
}

bool wire_amid(const wire_parser *parser) {
    return !parser->complete && parser->n_header > 0;
}

void wire_release(wire_parser *parser) {
    if (!wire_amid(parser)) {
        free(parser->body);
        parser->body = NULL;
    }
}

void wire_free(wire_parser *parser) {
    free(parser->body);
    *parser = (wire_parser){0};
}

const char *wire_explain(enum wire_result result) {
    static const char *const texts[] = {
        [WIRE_BAD_MAGIC] = "these bytes are no message of himach",
        [WIRE_BAD_VERSION] = "the message is of another version of the protocol",
        [WIRE_BAD_VERB] = "the message has a verb that is not taken here, or needs an OPEN that pushes before it",
        [WIRE_TOO_LONG] = "the message has a length that its verb may not have",
        [WIRE_BAD_MAC] =
            "the message was changed, dropped, repeated or moved on its way: it is not what the other side sent next",
        [WIRE_OUT_OF_MEMORY] = "there is no memory for the message",
    };
    return texts[result];
}

/* --- Output ------------------------------------------------------------------------------------------------------ */

void wire_header(unsigned char out[WIRE_HEADER], enum wire_verb verb, size_t size) {
    put32(out, MAGIC_WIRE);
    put32(out + 4, WIRE_VERSION | (uint32_t)verb << 16);
    put32(out + 8, (uint32_t)size);
    put32(out + 12, 0);
}

size_t wire_seal(mac_stream *mac, unsigned char *message, size_t size) {
    const mac_part part = {message, size};
    if (!mac->on) {
        return size;
    }
    mac_next(mac, &part, 1, message + size);
    return size + MAC_BYTES;
}

unsigned char *wire_body(const wire_output *output) {
    return output->bytes + output->n + WIRE_HEADER;
}

unsigned char *wire_room(wire_output *output, size_t size) {
    size_t needed = output->n + WIRE_HEADER + output->n_body + size + MAC_BYTES;
    output->failed = output->failed || !ARRAY_GROW(output->bytes, output->capacity, needed);
    return output->failed ? NULL : wire_body(output) + output->n_body;
}

void wire_add(wire_output *output, const void *data, size_t size) {
    unsigned char *room = wire_room(output, size);
    if (room != NULL && size > 0) {
        memcpy(room, data, size);
        output->n_body += size;
    }
}

bool wire_end(wire_output *output, enum wire_verb verb) {
    bool made = wire_room(output, 0) != NULL;
    if (made) {
        unsigned char *message = output->bytes + output->n;
        wire_header(message, verb, output->n_body);
        output->n += wire_seal(&output->mac, message, WIRE_HEADER + output->n_body);
    }
    wire_forget(output);
    return made;
}

void wire_forget(wire_output *output) {
    output->n_body = 0;
    output->failed = false;
}

void wire_empty(wire_output *output) {
    free(output->bytes);
    *output = (wire_output){.mac = output->mac};
}

/* --- Bodies ------------------------------------------------------------------------------------------------------ */

/* What follows a text and its NUL; NULL: it has no end, or is too long. */
static unsigned char *end_of(unsigned char *text, const unsigned char *end) {
    unsigned char *nul = memchr(text, '\0', (size_t)(end - text));
    return nul == NULL || nul - text > WIRE_MAX_NAME ? NULL : nul + 1;
}

bool wire_parse_open(unsigned char *body, size_t size, wire_open *open) {
    unsigned char *name = body + WIRE_OPEN_HEAD;
    unsigned char *end = body + size;
    unsigned char *identity = size < WIRE_OPEN_HEAD ? NULL : end_of(name, end);
    unsigned char *generation = identity == NULL ? NULL : end_of(identity, end);
    if (generation == NULL || identity == name + 1 || end - generation > WIRE_MAX_NAME) {
        return false;
    }
    *open = (wire_open){.flags = get32(body),
                        .name = (const char *)name,
                        .identity = (const char *)identity,
                        .generation = generation,
                        .generation_bytes = (size_t)(end - generation)};
    return true;
}

static unsigned fields_of(const bodhi_frame *frame) {
    return BODHI_POSITIONS | (frame->velocities != NULL ? BODHI_VELOCITIES : 0U) |
           (frame->forces != NULL ? BODHI_FORCES : 0U) | (frame->ids != NULL ? BODHI_IDS : 0U);
}

/* Bytes of some fields of an atom. */
static uint64_t atom_bytes(unsigned fields) {
    return (uint64_t)12 * count_fields(fields & VECTOR_FIELDS) + ((fields & BODHI_IDS) != 0 ? 4 : 0);
}

uint64_t wire_frame_bytes(const bodhi_frame *frame) {
    return WIRE_FRAME_HEAD + (uint64_t)frame->n_atoms * atom_bytes(fields_of(frame));
}

void wire_write_frame(unsigned char *out, const bodhi_frame *frame) {
    const void *arrays[FIELD_COUNT] = {frame->positions, frame->velocities, frame->forces, frame->ids};
    memset(out, 0, WIRE_FRAME_HEAD);
    put64(out, (uint64_t)frame->number);
    memcpy(out + 8, &frame->time, sizeof frame->time);
    put32(out + 16, (uint32_t)frame->n_atoms);
    out[20] = (unsigned char)fields_of(frame);
    out[21] = frame->box != NULL;
    if (frame->box != NULL) {
        memcpy(out + 24, frame->box, 24);
    }
    out += WIRE_FRAME_HEAD;
    for (unsigned i = 0; i < FIELD_COUNT; i++) {
        if (arrays[i] != NULL) {
            size_t bytes = (size_t)frame->n_atoms * atom_bytes(1U << i);
            memcpy(out, arrays[i], bytes);
            out += bytes;
        }
    }
}

bool wire_parse_frame(unsigned char *body, size_t size, bodhi_frame *frame) {
    if (size < WIRE_FRAME_HEAD) {
        return false;
    }
    uint64_t number = get64(body);
    uint32_t n_atoms = get32(body + 16);
    unsigned fields = body[20];
    if (number > BODHI_MAX_NUMBER || n_atoms == 0 || fields >= 1U << FIELD_COUNT || (fields & BODHI_POSITIONS) == 0 ||
        body[21] > 1 || size != WIRE_FRAME_HEAD + n_atoms * atom_bytes(fields)) {
        return false;
    }
    void *arrays[FIELD_COUNT] = {NULL};
    unsigned char *next = body + WIRE_FRAME_HEAD;
    for (unsigned i = 0; i < FIELD_COUNT; i++) {
        if ((fields & 1U << i) != 0) {
            arrays[i] = next;
            next += n_atoms * atom_bytes(1U << i);
        }
    }
    *frame = (bodhi_frame){.number = (int64_t)number,
                           .n_atoms = n_atoms,
                           .positions = arrays[0],
                           .velocities = arrays[1],
                           .forces = arrays[2],
                           .ids = arrays[FIELD_IDS],
                           .box = body[21] != 0 ? (float *)(void *)(body + 24) : NULL};
    memcpy(&frame->time, body + 8, sizeof frame->time);
    return true;
}
