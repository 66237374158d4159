/* Bytes of segments that lie on another machine; see extents.h.
 *
 * Requests are kept on their way ahead of the answer that is being received, so that the server reads, authenticates
 * and sends while this side checks. They are few and small enough that both sides' buffers take them: else each side
 * could wait for the other to read. */
#include "net/extents.h"

#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "base/status.h"

enum {
    MOST_PARTS = 256,       /* extents in a request */
    MOST_BYTES = 512 << 10, /* and their bytes: an answer is checked while the processor's cache has it */
    AHEAD = 2               /* requests on their way */
};

/* What is to be requested, or received, next: list[at], from this byte of it on. */
typedef struct {
    fetched *list;
    size_t n, at;
    uint64_t from;
} cursor;

typedef struct {
    fetched *request;
    uint64_t from;
    uint32_t size;
} part;

/* The parts of the next request; returns how many. */
static size_t next_request(cursor *c, part parts[MOST_PARTS]) {
    size_t bytes = 0;
    size_t n = 0;
    while (c->at < c->n && n < MOST_PARTS && bytes < MOST_BYTES) {
        fetched *request = &c->list[c->at];
        uint64_t left = request->size - c->from;
        uint32_t size = (uint32_t)(left < MOST_BYTES - bytes ? left : MOST_BYTES - bytes);
        parts[n++] = (part){request, c->from, size};
        bytes += size;
        c->from += size;
        if (c->from == request->size) {
            c->at++;
            c->from = 0;
        }
    }
    return n;
}

static int ask(wire_link *link, int64_t deadline, const segment_key *segments, const uint8_t *kinds, cursor *c) {
    part parts[MOST_PARTS];
    wire_extent extents[MOST_PARTS];
    size_t n = next_request(c, parts);
    for (size_t i = 0; i < n; i++) {
        const fetched *request = parts[i].request;
        extents[i] = (wire_extent){.segment = segments[request->segment].segment,
                                   .offset = request->offset + parts[i].from,
                                   .size = parts[i].size,
                                   .kind = kinds[request->segment]};
    }
    const wire_part body = {extents, n * sizeof *extents};
    return link_send_message(link, WIRE_TAKE, &body, 1, deadline);
}

/* Take what came for a request. False: it does not fit. */
static bool take(const wire_link *link, cursor *c) {
    part parts[MOST_PARTS];
    const unsigned char *body = link->records;
    size_t n = next_request(c, parts);
    size_t at = 4 * n;
    if (link->count != n || link->n_bytes < at) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        fetched *request = parts[i].request;
        uint32_t got = get32(body + 4 * i);
        uint32_t bytes = got == WIRE_GONE ? 0 : got;
        if (bytes > parts[i].size || bytes > link->n_bytes - at) {
            return false;
        }
        if (bytes > 0) {
            memcpy(request->to + parts[i].from, body + at, bytes);
        }
        if (bytes < parts[i].size && request->error == 0) {
            request->error = got == WIRE_GONE ? ENOENT : -1;
        }
        at += bytes;
    }
    return at == link->n_bytes;
}

int extents_fetch(wire_link *link, int64_t timeout_ms, const segment_key *segments, const uint8_t *kinds, fetched *list,
                  size_t n) {
    cursor requests = {.list = list, .n = n};
    cursor answers = requests;
    int on_their_way = 0;
    int status = BODHI_OK;
    while (status == BODHI_OK && answers.at < n) {
        if (requests.at < n && on_their_way < AHEAD) {
            on_their_way++;
            status = ask(link, now_ms() + timeout_ms, segments, kinds, &requests);
            continue;
        }
        on_their_way--;
        status = link_answer(link, WIRE_TAKE, now_ms() + timeout_ms);
        if (status == BODHI_OK && !take(link, &answers)) {
            status = bodhi_fail(BODHI_ERROR_PROTOCOL, "%s: bytes that were not asked for", link->address);
        }
    }
    for (size_t i = 0; status != BODHI_OK && i < n; i++) {
        list[i].error = ENOTCONN;
    }
    return status;
}
