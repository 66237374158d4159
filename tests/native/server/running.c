/* A server that runs in a thread, and links to it; see running.h. */
#include "running.h"

#include <dirent.h>

#include "../dials.h"
#include "../scratch.h"
#include "base/threads.h"
#include "store/dataset.h"

char doing[256];
char root[64], home[100], socket_path[100];

running own;

#define KEY "0123456789abcdef"

void make_root(void) {
    CHECK(make_scratch(root, sizeof root, "/tmp") && chmod(root, 0755) == 0);
    (void)snprintf(home, sizeof home, "%s/store", root);
    (void)snprintf(socket_path, sizeof socket_path, "%s/socket", root);
}

void remove_root(void) {
    remove_all(root);
}

static void *run(void *server) {
    return (void *)(intptr_t)bodhi_server_run(server);
}

running start_at(const char *store, const char *path, bodhi_serve_options options) {
    running r = {.listener = listen_at(path, SOCK_NONBLOCK)};
    struct sockaddr_in name;
    r.remote = listen_by_tcp(&name, SOCK_NONBLOCK);
    (void)snprintf(r.address, sizeof r.address, "127.0.0.1:%u", ntohs(name.sin_port));
    options.listener = r.listener;
    options.remote = r.remote;
    options.key = (const uint8_t *)KEY;
    options.key_bytes = strlen(KEY);
    CHECK(chmod(path, 0777) == 0);
    CHECK(bodhi_server_open(store, &options, &r.server) == BODHI_OK);
    CHECK(pthread_create(&r.thread, NULL, run, r.server) == 0);
    return r;
}

void end_running(running *r) {
    void *ended;
    CHECK(write(bodhi_server_wake(r->server), "x", 1) == 1);
    CHECK(pthread_join(r->thread, &ended) == 0 && (int)(intptr_t)ended == BODHI_OK);
    bodhi_server_close(r->server);
    (void)close(r->listener);
    (void)close(r->remote);
}

void stop_running(running *r) {
    end_running(r);
    await_dials(); /* of this test, before the next one changes what they call */
}

void start(bodhi_serve_options options) {
    own = start_at(home, socket_path, options);
}

void stop(void) {
    stop_running(&own);
}

wire_link dialled(void) {
    wire_link link = {.fd = -1};
    CHECK(link_dial(&link, socket_path, geteuid(), NULL, 0, now_ms() + SOON_MS) == BODHI_OK);
    return link;
}

int dial_as_stranger(wire_link *link) {
    return link_dial(link, own.address, 0, (const uint8_t *)KEY, strlen(KEY), now_ms() + SOON_MS);
}

int open_as(wire_link *link, uint32_t flags, const char *name, const char *generation, const char *identity) {
    char text[64];
    wire_open open = {.flags = flags, .name = name, .identity = identity, .generation = text};
    open.generation_bytes = (size_t)snprintf(text, sizeof text, "%s", generation);
    return link_open(link, &open, NULL, now_ms() + SOON_MS);
}

wire_link opened(uint32_t flags, const char *name, const char *generation) {
    wire_link link = dialled();
    CHECK(open_as(&link, flags, name, generation, "") == BODHI_OK);
    return link;
}

int ask(wire_link *link, enum wire_verb verb, const void *body, size_t size) {
    wire_part part = {body, size};
    return link_ask(link, verb, &part, 1, now_ms() + SOON_MS);
}

int question(wire_link *link, enum wire_verb verb, const char *name, uint64_t first, uint64_t last) {
    const wire_question asked = {.first = first, .last = last};
    const wire_part parts[] = {{&asked, sizeof asked}, {name, name == NULL ? 0 : strlen(name)}};
    return link_ask(link, verb, parts, 2, now_ms() + SOON_MS);
}

float value_of(int64_t number, int64_t i) {
    return (float)(number * 1000 + i) / 3.0F;
}

bodhi_frame frame_of(int64_t number, float *positions) {
    for (int64_t i = 0; i < (int64_t)ATOMS * 3; i++) {
        positions[i] = value_of(number, i);
    }
    return (bodhi_frame){.number = number, .n_atoms = ATOMS, .positions = positions};
}

void send_frame(wire_link *link, int64_t number) {
    float positions[ATOMS * 3];
    unsigned char body[WIRE_FRAME_HEAD + sizeof positions];
    bodhi_frame frame = frame_of(number, positions);
    wire_write_frame(body, &frame);
    const wire_part part = {body, sizeof body};
    CHECK(link_send_message(link, WIRE_FRAME, &part, 1, now_ms() + SOON_MS) == BODHI_OK);
}

void take_acks(wire_link *link, int64_t first, uint32_t n) {
    for (uint64_t next = (uint64_t)first; next < (uint64_t)first + n;) {
        CHECK(link_answer(link, WIRE_FRAME, now_ms() + SOON_MS) == BODHI_OK && link->count > 0);
        for (size_t at = 0; at < link->n_bytes; at += sizeof(wire_ack)) {
            wire_ack ack;
            memcpy(&ack, link->records + at, sizeof ack);
            CHECK(ack.number == next++ && ack.status >= 0);
        }
        CHECK(next <= (uint64_t)first + n);
    }
}

bodhi_dataset *open_beside(const char *name, const char *generation, int flags) {
    bodhi_store *store;
    bodhi_dataset *dataset;
    CHECK(bodhi_open(home, flags, &store) == BODHI_OK);
    CHECK(bodhi_dataset_open(store, name, generation, strlen(generation), flags, &dataset) == BODHI_OK);
    return dataset;
}

void close_beside(bodhi_dataset *dataset) {
    bodhi_store *store = dataset->store;
    bodhi_dataset_close(dataset);
    bodhi_close(store);
}

void open_served(served_dataset *d, const char *name, const char *generation) {
    *d = (served_dataset){.link = dialled(), .timeout_ms = SOON_MS};
    CHECK(served_open(d, name, generation, strlen(generation)) == BODHI_OK);
}

void write_frames(const char *name, const char *generation, int kind, int64_t first, int64_t last) {
    float positions[ATOMS * 3];
    bodhi_dataset *dataset = open_beside(name, generation, BODHI_CREATE);
    bodhi_writer *writer;
    bodhi_write_options options = {.segment_bytes = 6000};
    CHECK(bodhi_writer_open(dataset, kind, &options, &writer) == BODHI_OK);
    for (int64_t number = first; number < last; number++) {
        bodhi_frame frame = frame_of(number, positions);
        CHECK(bodhi_append(writer, &frame) == BODHI_OK);
    }
    CHECK(bodhi_writer_close(writer) == BODHI_OK);
    close_beside(dataset);
}

void write_attachment(const char *name, const unsigned char *data, size_t size) {
    bodhi_dataset *dataset = open_beside("/run", "one", 0);
    char path[300];
    (void)snprintf(path, sizeof path, "%s/%s/%s", home, bodhi_dataset_directory(dataset), name);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && write(fd, data, size) == (ssize_t)size && close(fd) == 0);
    close_beside(dataset);
}

void begin(const char *what) {
    DOING("%s", what);
    remove_all(home);
}
