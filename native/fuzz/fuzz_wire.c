/* Fuzz target: the parser of what clients and servers send, fed any bytes in pieces of any size, checksums bypassed,
 * and the bodies of the messages that come out of it.
 *
 * The first byte of the input: bit 0 whose messages are read, bit 7 whether they are authenticated (whatever the tags
 * say, which are then there), the rest the size of the pieces. Every input is parsed twice, in pieces and whole; both
 * must give the same messages. */
#include <stdlib.h>
#include <string.h>

#include "base/crc32c.h"
#include "net/wire.h"
#include "segments/record.h"
#include "target.h"

enum { MAX_FRAME = 1 << 16 };

/* What a parse has seen: how many messages, their verbs and lengths mixed, and how it ended. */
typedef struct {
    uint64_t messages, mixed;
    enum wire_result last;
} parsed;

/* Parse the body, and touch every byte that the parsed value speaks of. */
static uint64_t look_at(wire_parser *parser) {
    uint64_t sum = parser->size;
    wire_open open;
    bodhi_frame frame;
    if (parser->verb == WIRE_OPEN && wire_parse_open(parser->body, parser->size, &open)) {
        sum += strlen(open.name) + strlen(open.identity) + open.generation_bytes;
    }
    if (parser->verb == WIRE_FRAME && wire_parse_frame(parser->body, parser->size, &frame)) {
        const float *fields[] = {frame.positions, frame.velocities, frame.forces};
        for (int i = 0; i < 3; i++) {
            for (int64_t j = 0; fields[i] != NULL && j < frame.n_atoms * 3; j++) {
                uint32_t bits;
                memcpy(&bits, &fields[i][j], sizeof bits);
                sum += bits;
            }
        }
    }
    if (parser->verb == WIRE_ANSWER) {
        wire_answer answer;
        memcpy(&answer, parser->body, sizeof answer);
        sum += answer.count + (uint32_t)answer.status;
    }
    for (uint32_t at = 0; parser->verb == WIRE_TAKE && at + sizeof(wire_extent) <= parser->size;
         at += sizeof(wire_extent)) {
        wire_extent extent;
        memcpy(&extent, parser->body + at, sizeof extent);
        sum += extent.offset + extent.size;
    }
    return sum;
}

static parsed parse(const uint8_t *data, size_t size, uint8_t how, size_t piece) {
    wire_parser parser = {.requests = (how & 1) != 0 ? WIRE_SENDS : 0, .mac = {.on = (how & 0x80) != 0}};
    parsed outcome = {.last = WIRE_MORE};
    size_t at = 0;
    while (at < size && (outcome.last == WIRE_MORE || outcome.last == WIRE_MESSAGE)) {
        unsigned char *to;
        size_t space = wire_space(&parser, &to);
        size_t n = piece < size - at ? piece : size - at;
        n = n < space ? n : space;
        memcpy(to, data + at, n);
        at += n;
        if (parser.n_header + n == WIRE_HEADER && parser.header[6] == WIRE_FRAME &&
            get32(parser.header + 8) > MAX_FRAME) {
            break; /* it may be that long, and takes too much memory here */
        }
        outcome.last = wire_took(&parser, n);
        if (n == 0 || (outcome.last <= WIRE_MESSAGE && parser.size > WIRE_MAX_ANSWER)) {
            abort(); /* no progress, or memory for what may not be */
        }
        if (outcome.last == WIRE_MESSAGE) {
            outcome.messages++;
            outcome.mixed = (outcome.mixed ^ look_at(&parser) ^ (uint64_t)parser.verb << 32) * UINT64_C(0x100000001B3);
        }
    }
    wire_free(&parser);
    return outcome;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    bodhi_bypass_checksums = true;
    if (size < 1) {
        return 0;
    }
    parsed pieces = parse(data + 1, size - 1, data[0], (size_t)(data[0] >> 1 & 0x3f) + 1);
    parsed whole = parse(data + 1, size - 1, data[0], size);
    if (pieces.messages != whole.messages || pieces.mixed != whole.mixed) {
        abort();
    }
    return 0;
}
