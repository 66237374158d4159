/* What the server answers to each verb; see wire.h for the messages and answer.h for the parts. */
#include "answer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dataset.h"
#include "io.h"
#include "status.h"

/* --- Output ------------------------------------------------------------------------------------------------------ */

bool answer_error(connection *c, int status, const char *text) {
    size_t size = strnlen(text, WIRE_MAX_TEXT);
    unsigned char *body = output_body(c, 4 + size);
    if (body != NULL) {
        wire_put32(body, (uint32_t)status);
        memcpy(body + 4, text, size);
        output_done(c, WIRE_ERROR, 4 + size);
    }
    return false;
}

static bool send_empty(connection *c, enum wire_verb verb) {
    if (output_body(c, 0) == NULL) {
        return false;
    }
    output_done(c, verb, 0);
    return true;
}

/* --- Pushing ----------------------------------------------------------------------------------------------------- */

static void count_pushed(bodhi_server *server, const connection *c) {
    for (size_t i = 0; i < c->n_pushed; i++) {
        server->counters[COUNT_EXISTING] += c->pushed[i].status == BODHI_EXISTS;
        server->counters[COUNT_FAILED] += c->pushed[i].status < 0;
    }
}

static void send_acks(connection *c) {
    unsigned char *body = output_body(c, c->n_pushed * WIRE_ACK_BYTES);
    if (body == NULL) {
        c->ending = true; /* the client will ask again */
        return;
    }
    for (size_t i = 0; i < c->n_pushed; i++) {
        wire_write_ack(body + i * WIRE_ACK_BYTES, c->pushed[i].number, c->pushed[i].status);
    }
    output_done(c, WIRE_ACK, c->n_pushed * WIRE_ACK_BYTES);
}

void acknowledge(bodhi_server *server, held *h) {
    if (h->since == 0) {
        return;
    }
    int flushed = held_flush(h, h->durable);
    for (int i = 0; i < server->n_slots; i++) {
        connection *c = &server->connections[i];
        if (c->fd >= 0 && c->dataset == h && c->n_pushed > 0) {
            held_judge(h, c->pushed, c->n_pushed, flushed, h->durable);
            count_pushed(server, c);
            send_acks(c);
            c->n_pushed = 0;
        }
    }
    server->counters[COUNT_BATCHES]++;
    h->since = 0;
    h->durable = false;
}

static bool answer_frame(bodhi_server *server, connection *c) {
    bodhi_frame frame;
    if ((c->flags & WIRE_PUSHES) == 0) {
        return answer_error(c, BODHI_ERROR_UNSAFE, "frames may be pushed only after an OPEN that says so");
    }
    if (!wire_parse_frame(c->in.body, c->in.size, &frame)) {
        return answer_error(c, BODHI_ERROR_ARGUMENT, "the frame's fields do not fit its length");
    }
    if (c->pushed == NULL && (c->pushed = malloc(WIRE_MAX_NUMBERS * sizeof *c->pushed)) == NULL) {
        return answer_error(c, BODHI_ERROR_MEMORY, "out of memory");
    }
    held *h = c->dataset;
    bool durable = (c->flags & WIRE_DURABLE) != 0;
    int status = held_append(h, &frame, durable);
    c->pushed[c->n_pushed++] = (pushed){.number = (uint64_t)frame.number, .status = status};
    h->since = h->since == 0 ? now_ms() : h->since;
    h->durable = h->durable || durable;
    server->counters[COUNT_FRAMES]++;
    server->counters[COUNT_FRAME_BYTES] += c->in.size - WIRE_FRAME_HEAD;
    if (c->n_pushed == WIRE_MAX_NUMBERS) {
        acknowledge(server, h);
    }
    return true;
}

static bool answer_flush(bodhi_server *server, connection *c) {
    acknowledge(server, c->dataset);
    return true;
}

/* --- Opening ----------------------------------------------------------------------------------------------------- */

/* What an older connection of the same pusher has sent is kept and said by HAVE, or was not read and never will be. */
static void drop_older(bodhi_server *server, const connection *c) {
    static const uint8_t none[WIRE_TOKEN];
    if (memcmp(c->token, none, WIRE_TOKEN) == 0) {
        return;
    }
    for (int i = 0; i < server->n_slots; i++) {
        connection *older = &server->connections[i];
        if (older != c && older->fd >= 0 && older->dataset != NULL && memcmp(older->token, c->token, WIRE_TOKEN) == 0) {
            acknowledge(server, older->dataset);
            drop(server, older);
        }
    }
}

static bool send_opened(connection *c) {
    bodhi_facts facts;
    const bodhi_dataset *d = c->dataset->dataset;
    if (bodhi_dataset_query(c->dataset->dataset, &facts) != BODHI_OK) {
        return answer_error(c, BODHI_ERROR_SYSTEM, bodhi_message());
    }
    unsigned char *body = output_body(c, 48);
    if (body == NULL) {
        return false;
    }
    wire_put64(body, (uint64_t)facts.native);
    wire_put64(body + 8, (uint64_t)facts.alien);
    memcpy(body + 16, d->store->identity, 16);
    wire_put64(body + 32, d->key.dataset);
    wire_put64(body + 40, d->key.generation);
    output_done(c, WIRE_OPENED, 48);
    return true;
}

static bool answer_open(bodhi_server *server, connection *c) {
    wire_open open;
    if (!wire_parse_open(c->in.body, c->in.size, &open)) {
        return answer_error(c, BODHI_ERROR_ARGUMENT, "the dataset's name or generation does not fit the length");
    }
    if ((open.flags & WIRE_PUSHES) != 0 && (c->rights & RIGHT_PUSH) == 0) {
        return answer_error(c, BODHI_ERROR_UNSAFE, "this user may read here, and not push");
    }
    if (c->dataset != NULL) {
        return answer_error(c, BODHI_ERROR_ARGUMENT, "this connection has a dataset open; it needs another one");
    }
    memcpy(c->token, open.token, WIRE_TOKEN);
    drop_older(server, c);
    int status = held_open(server, &open, &c->dataset);
    c->flags = open.flags;
    return status == BODHI_OK ? send_opened(c) : answer_error(c, status, bodhi_message());
}

/* --- Asking ------------------------------------------------------------------------------------------------------ */

/* The numbers of a HAVE or READ in place, as the library wants them; false if one is out of range. */
static bool take_numbers(connection *c, int64_t **numbers, size_t *n) {
    *numbers = (int64_t *)(void *)c->in.body;
    *n = c->in.size / 8;
    for (size_t i = 0; i < *n; i++) {
        uint64_t number = wire_get64(c->in.body + 8 * i);
        if (number > INT64_MAX) {
            return false;
        }
        (*numbers)[i] = (int64_t)number;
    }
    return true;
}

static bool answer_have(bodhi_server *server, connection *c) {
    int64_t *numbers;
    size_t n;
    if (!take_numbers(c, &numbers, &n)) {
        return answer_error(c, BODHI_ERROR_ARGUMENT, "a frame number is too large");
    }
    acknowledge(server, c->dataset);
    if (bodhi_dataset_refresh(c->dataset->dataset) != BODHI_OK) {
        return answer_error(c, BODHI_ERROR_SYSTEM, bodhi_message());
    }
    unsigned char *body = output_body(c, n);
    if (body == NULL) {
        return false;
    }
    held_have(c->dataset, numbers, n, (c->flags & WIRE_DURABLE) != 0, body);
    output_done(c, WIRE_HELD, n);
    return true;
}

static bool answer_list(connection *c) {
    uint32_t kind = wire_get32(c->in.body);
    uint64_t from = wire_get64(c->in.body + 8);
    if (kind > BODHI_ALIEN || from > INT64_MAX) {
        return answer_error(c, BODHI_ERROR_ARGUMENT, "the kind or the first frame number is out of range");
    }
    uint64_t *numbers = malloc(WIRE_MAX_NUMBERS * sizeof *numbers);
    int64_t count = 0;
    int status = numbers == NULL ? BODHI_ERROR_MEMORY
                                 : bodhi_dataset_numbers(c->dataset->dataset, (int)kind, (int64_t)from, numbers,
                                                         WIRE_MAX_NUMBERS, &count);
    size_t size = 8 * (size_t)count;
    unsigned char *body = status == BODHI_OK ? output_body(c, size) : NULL;
    for (int64_t i = 0; i < count && body != NULL; i++) {
        wire_put64(body + 8 * i, numbers[i]);
    }
    free(numbers);
    if (body == NULL) {
        return answer_error(c, BODHI_ERROR_MEMORY, "out of memory");
    }
    output_done(c, WIRE_NUMBERS, size);
    return true;
}

/* --- Reading ----------------------------------------------------------------------------------------------------- */

static bool send_places(bodhi_server *server, connection *c, const int64_t *numbers, size_t n) {
    wire_place *places = malloc(n * sizeof *places);
    size_t at = c->n_out;
    unsigned char *body = places == NULL ? NULL : output_body(c, n * WIRE_PLACE_BYTES);
    if (body == NULL) {
        free(places);
        return answer_error(c, BODHI_ERROR_MEMORY, "out of memory");
    }
    held_places(c->dataset, numbers, n, places, c->descriptors, WIRE_MAX_SEGMENTS, &c->n_descriptors);
    c->descriptors_at = at;
    for (size_t i = 0; i < n; i++) {
        wire_write_place(body + i * WIRE_PLACE_BYTES, &places[i]);
    }
    free(places);
    output_done(c, WIRE_PLACES, n * WIRE_PLACE_BYTES);
    server->counters[COUNT_READS]++;
    server->counters[COUNT_PLACES] += n;
    return true;
}

static void begin_turn(bodhi_server *server, connection *c) {
    server->reading = c;
    server->reading_deadline = now_ms() + server->options.message_ms;
    memcpy(server->position, c->position, sizeof server->position);
    c->turn = TURN_GRANTED;
    c->ending = !send_places(server, c, c->wanted, c->n_wanted);
    free(c->wanted);
    c->wanted = NULL;
}

static bool is_before(const uint64_t a[2], const uint64_t b[2]) {
    return a[0] != b[0] ? a[0] < b[0] : a[1] < b[1];
}

/* Who comes next: the first at or behind the last turn's place, else the first of all, so that the disk's arm goes one
 * way. */
static connection *choose_next(bodhi_server *server) {
    connection *best = NULL;
    for (int i = 0; i < server->n_slots; i++) {
        connection *c = &server->connections[i];
        if (c->fd < 0 || c->turn != TURN_WAITING) {
            continue;
        }
        if (best == NULL) {
            best = c;
            continue;
        }
        bool passed = is_before(c->position, server->position);
        bool best_passed = is_before(best->position, server->position);
        if (passed != best_passed ? best_passed : is_before(c->position, best->position)) {
            best = c;
        }
    }
    return best;
}

void end_turn(bodhi_server *server) {
    if (server->reading != NULL) {
        server->reading->turn = TURN_NONE;
        server->reading = NULL;
    }
    connection *next = choose_next(server);
    if (next != NULL) {
        begin_turn(server, next);
    }
}

static bool answer_read(bodhi_server *server, connection *c) {
    int64_t *numbers;
    size_t n;
    if ((c->rights & RIGHT_READ) == 0) {
        return answer_error(c, BODHI_ERROR_UNSAFE, "places are given to clients of this machine only");
    }
    if (!take_numbers(c, &numbers, &n)) {
        return answer_error(c, BODHI_ERROR_ARGUMENT, "a frame number is too large");
    }
    if (server->options.serialize_reads == 0) {
        return send_places(server, c, numbers, n);
    }
    if (server->reading == c) {
        end_turn(server); /* one that asks again has read what it had */
    }
    c->wanted = malloc(n * sizeof *c->wanted);
    if (c->wanted == NULL) {
        return answer_error(c, BODHI_ERROR_MEMORY, "out of memory");
    }
    memcpy(c->wanted, numbers, n * sizeof *c->wanted);
    c->n_wanted = n;
    held_position(c->dataset, numbers, n, c->position);
    c->turn = TURN_WAITING;
    if (server->reading == NULL) {
        end_turn(server);
    }
    return !c->ending;
}

/* --- Control ----------------------------------------------------------------------------------------------------- */

static bool answer_status(bodhi_server *server, connection *c) {
    unsigned char *body = output_body(c, 8 * (size_t)N_COUNTERS);
    if (body == NULL) {
        return false;
    }
    server->counters[COUNT_CONNECTIONS] = server->counters[COUNT_WAITING] = 0;
    for (int i = 0; i < server->n_slots; i++) {
        server->counters[COUNT_CONNECTIONS] += server->connections[i].fd >= 0;
        server->counters[COUNT_WAITING] +=
            server->connections[i].fd >= 0 && server->connections[i].turn == TURN_WAITING;
    }
    for (int i = 0; i < N_COUNTERS; i++) {
        wire_put64(body + (size_t)i * 8, server->counters[i]);
    }
    output_done(c, WIRE_COUNTERS, 8 * (size_t)N_COUNTERS);
    return true;
}

static bool answer_stop(bodhi_server *server, connection *c) {
    if ((c->rights & RIGHT_STOP) == 0) {
        return answer_error(c, BODHI_ERROR_UNSAFE, "only the server's own user on its own machine may stop it");
    }
    server->stopping = true;
    return send_empty(c, WIRE_STOPPING);
}

bool answer(bodhi_server *server, connection *c) {
    switch (c->in.verb) {
    case WIRE_OPEN:
        return answer_open(server, c);
    case WIRE_STATUS:
        return answer_status(server, c);
    case WIRE_STOP:
        return answer_stop(server, c);
    default:
        break;
    }
    if (c->dataset == NULL) {
        return answer_error(c, BODHI_ERROR_ARGUMENT, "a dataset must be opened first");
    }
    switch (c->in.verb) {
    case WIRE_FRAME:
        return answer_frame(server, c);
    case WIRE_FLUSH:
        return answer_flush(server, c);
    case WIRE_HAVE:
        return answer_have(server, c);
    case WIRE_LIST:
        return answer_list(c);
    case WIRE_READ:
        return answer_read(server, c);
    case WIRE_DONE:
        if (server->reading == c) {
            end_turn(server);
        }
        return true;
    default:
        return answer_error(c, BODHI_ERROR_ARGUMENT, "the server does not take this verb");
    }
}
