/* Bytes of segments that lie on another machine; see extents.h.
 *
 * Requests are kept on their way ahead of the answer that is being received, so that the server reads, authenticates
 * and sends while this side checks. They are few and small enough that both sides' buffers take them: else each side
 * could wait for the other to read. */
#include "net/extents.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/status.h"

enum {
    MOST_PARTS = 256,       /* extents in a request */
    MOST_BYTES = 512 << 10, /* and their bytes: an answer is checked while the processor's cache has it */
    AHEAD = 2               /* requests on their way */
};

/* A request: parts of what is in the list. */
typedef struct {
    size_t n;
    struct {
        fetched *of;
        uint64_t from;
        uint32_t size;
    } parts[MOST_PARTS];
} request;

/* What is to be asked for next: list[at], from this byte of it on. */
typedef struct {
    fetched *list;
    size_t n, at;
    uint64_t from;
} cursor;

static void compose(cursor *c, request *q) {
    size_t bytes = 0;
    q->n = 0;
    while (c->at < c->n && q->n < MOST_PARTS && bytes < MOST_BYTES) {
        fetched *of = &c->list[c->at];
        uint64_t left = of->size - c->from;
        uint32_t size = (uint32_t)(left < MOST_BYTES - bytes ? left : MOST_BYTES - bytes);
        q->parts[q->n].of = of;
        q->parts[q->n].from = c->from;
        q->parts[q->n++].size = size;
        bytes += size;
        c->from += size;
        if (c->from == of->size) {
            c->at++;
            c->from = 0;
        }
    }
}

static int ask(wire_link *link, int64_t timeout_ms, const segment_key *segments, const uint8_t *kinds,
               const request *q) {
    wire_extent extents[MOST_PARTS];
    for (size_t i = 0; i < q->n; i++) {
        const fetched *of = q->parts[i].of;
        extents[i] = (wire_extent){.segment = segments[of->segment].segment,
                                   .offset = of->offset + q->parts[i].from,
                                   .size = q->parts[i].size,
                                   .kind = kinds[of->segment]};
    }
    const wire_part part = {extents, q->n * sizeof *extents};
    return link_send_message(link, WIRE_TAKE, &part, 1, now_ms() + timeout_ms);
}

/* Take what came for a request. False: it does not fit. */
static bool take(const wire_link *link, const request *q) {
    const unsigned char *body = link->records;
    size_t at = 4 * q->n;
    if (link->count != q->n || link->n_bytes < at) {
        return false;
    }
    for (size_t i = 0; i < q->n; i++) {
        fetched *of = q->parts[i].of;
        uint32_t got = get32(body + 4 * i);
        uint32_t bytes = got == WIRE_GONE ? 0 : got;
        if (bytes > q->parts[i].size || bytes > link->n_bytes - at) {
            return false;
        }
        if (bytes > 0) {
            memcpy(of->to + q->parts[i].from, body + at, bytes);
        }
        if (bytes < q->parts[i].size && of->error == 0) {
            of->error = got == WIRE_GONE ? ENOENT : -1;
        }
        at += bytes;
    }
    return at == link->n_bytes;
}

static int exchange(wire_link *link, int64_t timeout_ms, const segment_key *segments, const uint8_t *kinds, cursor *c,
                    request *ring) {
    size_t sent = 0;
    size_t received = 0;
    int status = BODHI_OK;
    while (status == BODHI_OK && (c->at < c->n || received < sent)) {
        if (c->at < c->n && sent - received < AHEAD) {
            request *q = &ring[sent++ % AHEAD];
            compose(c, q);
            status = ask(link, timeout_ms, segments, kinds, q);
            continue;
        }
        status = link_answer(link, WIRE_TAKE, now_ms() + timeout_ms);
        if (status == BODHI_OK && !take(link, &ring[received++ % AHEAD])) {
            status = bodhi_fail(BODHI_ERROR_PROTOCOL, "%s: bytes that were not asked for", link->address);
        }
    }
    return status;
}

int extents_fetch(wire_link *link, int64_t timeout_ms, const segment_key *segments, const uint8_t *kinds, fetched *list,
                  size_t n) {
    cursor c = {.list = list, .n = n};
    request *ring = malloc(AHEAD * sizeof *ring);
    int status = ring == NULL ? bodhi_fail_memory() : exchange(link, timeout_ms, segments, kinds, &c, ring);
    for (size_t i = 0; status != BODHI_OK && i < n; i++) {
        list[i].error = ring == NULL ? ENOMEM : ENOTCONN;
    }
    free(ring);
    return status;
}
