/* A server that runs in a thread, and links to it; see running.h. */
#include "running.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "../check.h"
#include "../dials.h"
#include "../scratch.h"
#include "base/clock.h"

char doing[256];
char root[64], home[100], socket_path[100];
const uint8_t no_token[WIRE_TOKEN];

bodhi_server *server;
pthread_t thread;
int listener, ended;

void make_root(void) {
    CHECK(make_scratch(root, sizeof root, "/tmp") && chmod(root, 0755) == 0);
    (void)snprintf(home, sizeof home, "%s/store", root);
    (void)snprintf(socket_path, sizeof socket_path, "%s/socket", root);
}

void remove_root(void) {
    remove_all(root);
}

static void *run(void *argument) {
    (void)argument;
    ended = bodhi_server_run(server);
    return NULL;
}

void start(bodhi_serve_options options) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    (void)snprintf(address.sun_path, sizeof address.sun_path, "%s", socket_path);
    (void)unlink(socket_path);
    CHECK(bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, 16) == 0);
    CHECK(chmod(socket_path, 0777) == 0);
    options.listener = listener;
    CHECK(bodhi_server_open(home, &options, &server) == BODHI_OK);
    CHECK(pthread_create(&thread, NULL, run, NULL) == 0);
}

void stop(void) {
    CHECK(write(bodhi_server_wake(server), "x", 1) == 1 && pthread_join(thread, NULL) == 0);
    bodhi_server_close(server);
    (void)close(listener);
    await_dials(); /* of this test, before the next one changes what they call */
}

wire_link dialled(void) {
    wire_link link = {.fd = -1};
    CHECK(link_dial(&link, socket_path, geteuid(), NULL, 0, now_ms() + SOON_MS) == BODHI_OK);
    return link;
}

wire_link opened(uint32_t flags, const uint8_t *token, const char *name, const char *generation) {
    wire_link link = dialled();
    CHECK(link_open(&link, flags, token, name, generation, strlen(generation), "", now_ms() + SOON_MS) == BODHI_OK);
    return link;
}

int ask(wire_link *link, enum wire_verb verb, const void *body, size_t size, enum wire_verb expected) {
    wire_part part = {body, size};
    return link_ask(link, verb, &part, 1, expected, now_ms() + SOON_MS);
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
    unsigned char head[WIRE_FRAME_HEAD];
    bodhi_frame frame = frame_of(number, positions);
    wire_write_frame(head, &frame);
    wire_part parts[2] = {{head, sizeof head}, {positions, sizeof positions}};
    CHECK(link_send_message(link, WIRE_FRAME, parts, 2, now_ms() + SOON_MS) == BODHI_OK);
}

void take_acks(wire_link *link, int64_t first, uint32_t n) {
    for (uint64_t next = (uint64_t)first; next < (uint64_t)first + n;) {
        CHECK(link_answer(link, WIRE_ACK, now_ms() + SOON_MS) == BODHI_OK && link->in.size >= WIRE_ACK_BYTES);
        for (size_t at = 0; at < link->in.size; at += WIRE_ACK_BYTES) {
            uint64_t number;
            int32_t status;
            wire_parse_ack(link->in.body + at, &number, &status);
            CHECK(number == next++ && status >= 0);
        }
        CHECK(next <= (uint64_t)first + n);
    }
}

void write_frames(const char *name, const char *generation, int kind, int64_t first, int64_t last) {
    float positions[ATOMS * 3];
    bodhi_store *store;
    bodhi_dataset *dataset;
    bodhi_writer *writer;
    bodhi_write_options options = {.segment_bytes = 6000};
    CHECK(bodhi_open(home, BODHI_CREATE, &store) == BODHI_OK);
    CHECK(bodhi_dataset_open(store, name, generation, strlen(generation), BODHI_CREATE, &dataset) == BODHI_OK);
    CHECK(bodhi_writer_open(dataset, kind, &options, &writer) == BODHI_OK);
    for (int64_t number = first; number < last; number++) {
        bodhi_frame frame = frame_of(number, positions);
        CHECK(bodhi_append(writer, &frame) == BODHI_OK);
    }
    CHECK(bodhi_writer_close(writer) == BODHI_OK);
    bodhi_dataset_close(dataset);
    bodhi_close(store);
}

void write_attachment(const char *name, const unsigned char *data, size_t size) {
    bodhi_store *store;
    bodhi_dataset *dataset;
    char path[300];
    CHECK(bodhi_open(home, 0, &store) == BODHI_OK);
    CHECK(bodhi_dataset_open(store, "/run", "one", 3, 0, &dataset) == BODHI_OK);
    (void)snprintf(path, sizeof path, "%s/%s/%s", home, bodhi_dataset_directory(dataset), name);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && write(fd, data, size) == (ssize_t)size && close(fd) == 0);
    bodhi_dataset_close(dataset);
    bodhi_close(store);
}

void begin(const char *what) {
    (void)snprintf(doing, sizeof doing, "%s", what);
    remove_all(home);
}

int count_descriptors(void) {
    int n = 0;
    DIR *listed = opendir("/proc/self/fd");
    while (readdir(listed) != NULL) {
        n++;
    }
    (void)closedir(listed);
    return n;
}
