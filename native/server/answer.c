/* What the server answers to each verb; see wire.h for the messages. */
#include "server/server.h"

#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "base/threads.h"
#include "store/dataset.h"

/* Acknowledge this connection's frames up to a FLUSH; of another simulation nothing more is taken. */
static void send_acks(connection *c, uint64_t client, const task *batch) {
    const task *refused = NULL; /* whose reason is told: of a conflict, or else the first */
    size_t n = 0;
    for (const task *t = batch; t->verb == TASK_FRAME; t = t->next) {
        if (t->client != client) {
            continue;
        }
        const wire_ack ack = {.number = (uint64_t)t->frame.number, .status = t->status};
        output_add(c, &ack, sizeof ack);
        n++;
        if (t->reason != NULL &&
            (refused == NULL || (refused->status != BODHI_ERROR_CONFLICT && t->status == BODHI_ERROR_CONFLICT))) {
            refused = t;
        }
    }
    if (refused != NULL) {
        output_add(c, refused->reason, strnlen(refused->reason, WIRE_MAX_TEXT));
        c->ending = c->ending || refused->status == BODHI_ERROR_CONFLICT;
    }
    /* Where memory is out the client sends them again, over another connection. */
    c->ending = (n > 0 && !output_end(c, WIRE_FRAME, n)) || c->ending;
}

static void answer_flushed(bodhi_server *server, const open_dataset *d, const task *batch) {
    for (const task *t = batch; t->verb == TASK_FRAME; t = t->next) {
        server->counters[COUNT_EXISTING] += t->status == BODHI_EXISTS;
        server->counters[COUNT_FAILED] += t->status < 0;
    }
    for (int i = 0; i < server->n_slots; i++) {
        connection *c = &server->connections[i];
        if (c->fd >= 0 && c->dataset == d && (c->flags & WIRE_PUSHES) != 0) {
            send_acks(c, connection_id(server, c), batch);
        }
    }
    server->counters[COUNT_BATCHES]++;
}

void answer_done(bodhi_server *server) {
    for (open_dataset *d = server->datasets; d != NULL; d = d->next) {
        task *done = d->ingest == NULL ? NULL : ingest_take_done(d->ingest);
        const task *batch = done;
        for (const task *t = done; t != NULL; t = t->next) {
            d->awaited--;
            if (t->verb == TASK_FLUSH) {
                answer_flushed(server, d, batch);
            }
            batch = t->verb == TASK_FRAME ? batch : t->next;
        }
        tasks_free(done);
    }
    datasets_close_idle(server);
}

static bool answer_frame(bodhi_server *server, connection *c) {
    bodhi_frame frame;
    if (!wire_parse_frame(c->in.body, c->in.size, &frame)) {
        return output_error(c, BODHI_ERROR_ARGUMENT, "the frame's fields do not fit its length");
    }
    open_dataset *d = c->dataset;
    if (d->ingest == NULL) {
        d->ingest = ingest_start(d->dataset, server->pipes[EVENT_INGESTED][1], &server->backlog);
    }
    task *t = d->ingest == NULL ? NULL : task_new(TASK_FRAME, connection_id(server, c), (c->flags & WIRE_DURABLE) != 0);
    if (t == NULL) {
        return output_error(c, BODHI_ERROR_MEMORY, "no memory, or no thread to write with");
    }
    t->frame = frame;
    t->n = c->in.size;
    t->body = wire_take_body(&c->in);
    d->unflushed_since = d->unflushed_since == 0 ? now_ms() : d->unflushed_since;
    d->durable = d->durable || t->durable;
    datasets_submit(d, t);
    server->counters[COUNT_FRAMES]++;
    server->counters[COUNT_FRAME_BYTES] += c->in.size - WIRE_FRAME_HEAD;
    if (++d->n_unflushed == WIRE_MAX_NUMBERS) {
        datasets_flush(d);
    }
    return true;
}

static bool answer_open(bodhi_server *server, connection *c) {
    wire_open open;
    bodhi_facts facts;
    if (!wire_parse_open(c->in.body, c->in.size, &open)) {
        return output_error(c, BODHI_ERROR_ARGUMENT, "the dataset's name or generation does not fit the length");
    }
    if ((open.flags & WIRE_PUSHES) != 0 && (c->rights & RIGHT_PUSH) == 0) {
        return output_error(c, BODHI_ERROR_UNSAFE, "this user may read here, and not push");
    }
    if (c->dataset != NULL) {
        return output_error(c, BODHI_ERROR_ARGUMENT, "this connection has a dataset open; it needs another one");
    }
    int status = datasets_acquire(server, &open, &c->dataset);
    c->flags = open.flags;
    status = status == BODHI_OK ? bodhi_dataset_query(c->dataset->dataset, &facts) : status;
    if (status != BODHI_OK) {
        return output_error(c, status, bodhi_message());
    }
    c->in.requests = (open.flags & WIRE_PUSHES) != 0 ? WIRE_SENDS : WIRE_READS;
    const bodhi_dataset *dataset = c->dataset->dataset;
    wire_opened opened = {.native = (uint64_t)facts.native,
                          .alien = (uint64_t)facts.alien,
                          .dataset = dataset->key.dataset,
                          .generation = dataset->key.generation,
                          .bytes = (uint64_t)facts.bytes,
                          .in_turns = server->options.serialize_reads != 0};
    memcpy(opened.identity, dataset->store->identity, sizeof opened.identity);
    output_add(c, &opened, sizeof opened);
    return output_end(c, WIRE_OPEN, 1);
}

static bool answer_read(bodhi_server *server, connection *c) {
    int64_t *numbers = (int64_t *)(void *)c->in.body; /* in place */
    size_t n = c->in.size / 8;
    if (n == 0) {
        turn_end(server, c);
        return true;
    }
    for (size_t i = 0; i < n; i++) {
        numbers[i] = (int64_t)get64(c->in.body + 8 * i);
        if (numbers[i] < 0) {
            return output_error(c, BODHI_ERROR_ARGUMENT, "a frame number is too large");
        }
    }
    dataset_use(c->dataset->dataset);
    /* Bytes that go to other machines are read as they are asked for: no turn is held for them. */
    return server->options.serialize_reads == 0 || c->remote ? send_places(server, c, numbers, n)
                                                             : turn_wait(server, c, numbers, n);
}

static bool answer_status(bodhi_server *server, connection *c) {
    const char *peers = server->options.peers;
    server->counters[COUNT_CONNECTIONS] = server->counters[COUNT_WAITING] = 0;
    for (int i = 0; i < server->n_slots; i++) {
        bool open = server->connections[i].fd >= 0;
        server->counters[COUNT_CONNECTIONS] += open;
        server->counters[COUNT_WAITING] += open && server->connections[i].turn == TURN_WAITING;
    }
    output_add(c, server->counters, sizeof server->counters);
    output_add(c, server->store->identity, sizeof server->store->identity);
    output_add(c, peers, peers == NULL ? 0 : strnlen(peers, WIRE_MAX_PEERS));
    return output_end(c, WIRE_STATUS, N_COUNTERS);
}

bool answer(bodhi_server *server, connection *c) {
    enum wire_verb verb = c->in.verb;
    /* What these answer is only true of the segments that are there: others may have evicted some. */
    bool says_what_is_there = verb == WIRE_READ || verb == WIRE_RUNS || verb == WIRE_FETCH;
    if (says_what_is_there && dataset_keep_up(c->dataset->dataset) != BODHI_OK) {
        return output_error(c, BODHI_ERROR_SYSTEM, bodhi_message());
    }
    switch (verb) {
    case WIRE_OPEN:
        return answer_open(server, c);
    case WIRE_STATUS:
        return answer_status(server, c);
    case WIRE_FRAME:
        return answer_frame(server, c);
    case WIRE_FLUSH:
        datasets_flush(c->dataset);
        return true;
    case WIRE_READ:
        return answer_read(server, c);
    case WIRE_FETCH:
        return answer_attachment(c);
    case WIRE_RUNS:
        return answer_runs(c);
    case WIRE_TAKE:
        return answer_take(server, c);
    case WIRE_SURVEY:
        return answer_survey(server, c);
    default:
        return output_error(c, BODHI_ERROR_ARGUMENT, "the server does not take this verb");
    }
}
