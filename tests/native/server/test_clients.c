/* Tests of a server's verbs, rights and turns, and of what a client makes of a server, all through sockets. */
#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../check.h"
#include "../scratch.h"
#include "base/clock.h"
#include "base/hmac.h"
#include "base/io.h"
#include "net/link.h"
#include "net/served.h"
#include "net/slots.h"
#include "server/serve.h"

char doing[256];
enum { ATOMS = 100, SOON_MS = 3000, NOBODY = 65534, PART_BYTES = 128 << 10 /* of an attachment at once */ };
static char root[64], home[100], socket_path[100];
static const uint8_t no_token[WIRE_TOKEN];

/* --- A server ---------------------------------------------------------------------------------------------------- */

static bodhi_server *server;
static pthread_t thread;
static int listener, ended;

static void *run(void *argument) {
    (void)argument;
    ended = bodhi_server_run(server);
    return NULL;
}

static void start(bodhi_serve_options options) {
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

static void stop(void) {
    CHECK(write(bodhi_server_wake(server), "x", 1) == 1 && pthread_join(thread, NULL) == 0);
    bodhi_server_close(server);
    (void)close(listener);
}

static wire_link dialled(void) {
    wire_link link = {.fd = -1};
    CHECK(link_dial(&link, socket_path, geteuid(), NULL, 0, now_ms() + SOON_MS) == BODHI_OK);
    return link;
}

static wire_link opened(uint32_t flags, const uint8_t *token, const char *name, const char *generation) {
    wire_link link = dialled();
    CHECK(link_open(&link, flags, token, name, generation, strlen(generation), "", now_ms() + SOON_MS) == BODHI_OK);
    return link;
}

static int ask(wire_link *link, enum wire_verb verb, const void *body, size_t size, enum wire_verb expected) {
    wire_part part = {body, size};
    return link_ask(link, verb, &part, 1, expected, now_ms() + SOON_MS);
}

static float value_of(int64_t number, int64_t i) {
    return (float)(number * 1000 + i) / 3.0F;
}

static bodhi_frame frame_of(int64_t number, float *positions) {
    for (int64_t i = 0; i < (int64_t)ATOMS * 3; i++) {
        positions[i] = value_of(number, i);
    }
    return (bodhi_frame){.number = number, .n_atoms = ATOMS, .positions = positions};
}

static void send_frame(wire_link *link, int64_t number) {
    float positions[ATOMS * 3];
    unsigned char head[WIRE_FRAME_HEAD];
    bodhi_frame frame = frame_of(number, positions);
    wire_write_frame(head, &frame);
    wire_part parts[2] = {{head, sizeof head}, {positions, sizeof positions}};
    CHECK(link_send_message(link, WIRE_FRAME, parts, 2, now_ms() + SOON_MS) == BODHI_OK);
}

/* Wait for an ACK, which must be of these frames. */
static void take_acks(wire_link *link, int64_t first, uint32_t n) {
    CHECK(link_answer(link, WIRE_ACK, now_ms() + SOON_MS) == BODHI_OK && link->in.size == n * WIRE_ACK_BYTES);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t number;
        int32_t status;
        wire_parse_ack(link->in.body + (size_t)i * WIRE_ACK_BYTES, &number, &status);
        CHECK(number == (uint64_t)first + i && status >= 0);
    }
}

static void write_frames(const char *name, const char *generation, int kind, int64_t first, int64_t last) {
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

static void begin(const char *what) {
    (void)snprintf(doing, sizeof doing, "%s", what);
    remove_all(home);
}

static int count_descriptors(void) {
    int n = 0;
    DIR *listed = opendir("/proc/self/fd");
    while (readdir(listed) != NULL) {
        n++;
    }
    (void)closedir(listed);
    return n;
}

/* --- Questions --------------------------------------------------------------------------------------------------- */

static void fetch(wire_link *link, const char *name, uint64_t from, enum wire_verb expected) {
    unsigned char body[8 + 80];
    wire_put64(body, from);
    memcpy(body + 8, name, strlen(name)); // NOLINT(bugprone-not-null-terminated-result): lengths tell the end
    int status = ask(link, WIRE_FETCH, body, 8 + strlen(name), WIRE_ATTACHMENT);
    CHECK((status == BODHI_OK) == (expected == WIRE_ATTACHMENT));
}

static void write_attachment(const char *name, const unsigned char *data, size_t size) {
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

static void test_questions(void) {
    begin("what a server answers");
    static unsigned char attached[(1 << 20) + 5000];
    unsigned char question[24];
    for (size_t i = 0; i < sizeof attached; i++) {
        attached[i] = (unsigned char)(i * 2654435761U >> 11);
    }
    write_frames("/run", "one", BODHI_ALIEN, 60, 64);
    write_frames("/run", "one", BODHI_NATIVE, 0, 40);
    write_frames("/run", "two", BODHI_NATIVE, 0, 3);
    write_frames("/ran", "six", BODHI_NATIVE, 0, 3);
    write_attachment("x-large", attached, sizeof attached);
    start((bodhi_serve_options){0});
    wire_link one = opened(0, no_token, "/run", "one");
    CHECK(wire_get64(one.in.body) == 40 && wire_get64(one.in.body + 8) == 4);
    wire_link two = opened(0, no_token, "/run", "two");
    CHECK(wire_get64(two.in.body) == 3 && wire_get64(two.in.body + 8) == 0);
    CHECK(ask(&two, WIRE_FIND, "/run", 4, WIRE_GENERATIONS) == BODHI_OK && two.in.size == 14);
    CHECK(ask(&two, WIRE_FIND, "/ran", 4, WIRE_GENERATIONS) == BODHI_OK && two.in.size == 7);
    CHECK(memcmp(two.in.body + 4, "six", 3) == 0);
    wire_put64(question, 0);
    wire_put64(question + 8, 1);
    wire_put64(question + 16, 64);
    CHECK(ask(&one, WIRE_MARK, question, 24, WIRE_MARKED) == BODHI_OK);
    CHECK(wire_get64(one.in.body) == (UINT64_C(1) << 40) - 1 && wire_get64(one.in.body + 8) == UINT64_C(15) << 60);
    fetch(&one, "large", 5000, WIRE_ATTACHMENT);
    CHECK(wire_get64(one.in.body) == sizeof attached && one.in.size == 8 + PART_BYTES);
    CHECK(memcmp(one.in.body + 8, attached + 5000, PART_BYTES) == 0);
    send_frame(&one, 200); /* it did not say that it would push */
    CHECK(link_answer(&one, WIRE_ACK, now_ms() + SOON_MS) == BODHI_ERROR_UNSAFE);
    link_close(&one);
    one = opened(0, no_token, "/run", "one");
    fetch(&one, "a/../../identity", 0, WIRE_ERROR);
    link_close(&one);
    link_close(&two);
    stop();
}

/* Frames in many segments, read by the descriptors that the server hands out; none of these stays open. */
static void test_reading(void) {
    begin("reading by a server");
    int64_t numbers[40];
    write_frames("/run", "one", BODHI_NATIVE, 0, 40);
    start((bodhi_serve_options){0});
    int before = 0;
    for (int round = 0; round < 3; round++) {
        served_dataset d = {.link = dialled(), .timeout_ms = SOON_MS};
        bodhi_reader *reader;
        bodhi_frame frame;
        (void)pthread_mutex_init(&d.mutex, NULL);
        CHECK(served_open(&d, "/run", "one", 3) == BODHI_OK);
        for (int64_t i = 0; i < 40; i++) {
            numbers[i] = i * 7 % 40;
        }
        CHECK(served_reader_open(&d, numbers, 40, NULL, &reader) == BODHI_OK);
        for (int64_t i = 0; i < 40; i++) {
            CHECK(bodhi_reader_next(reader, &frame) == BODHI_OK && frame.number == numbers[i]);
            CHECK(frame.positions[17] == value_of(frame.number, 17));
        }
        bodhi_reader_close(reader);
        served_free(&d);
        (void)pthread_mutex_destroy(&d.mutex);
        (void)usleep(50000);
        before = round == 0 ? count_descriptors() : before;
        CHECK(count_descriptors() <= before);
    }
    stop();
}

/* --- Pushing ----------------------------------------------------------------------------------------------------- */

static void test_acknowledgements(void) {
    begin("acknowledgements");
    uint8_t token[WIRE_TOKEN] = {7};
    start((bodhi_serve_options){.batch_ms = 100});
    wire_link one = opened(WIRE_PUSHES | WIRE_DURABLE, no_token, "/run", "one");
    wire_link two = opened(WIRE_PUSHES, token, "/run", "one");
    send_frame(&one, 1);
    send_frame(&one, 2);
    send_frame(&two, 3);
    take_acks(&one, 1, 2); /* unasked, and each its own */
    take_acks(&two, 3, 1);
    wire_link again = opened(WIRE_PUSHES, token, "/run", "one");
    CHECK(link_answer(&two, WIRE_ACK, now_ms() + SOON_MS) == BODHI_ERROR_UNREACHABLE); /* it was dropped */
    CHECK(!strstr(bodhi_message(), "in time"));
    link_close(&one);
    link_close(&two);
    link_close(&again);
    bodhi_store *store;
    bodhi_dataset *dataset;
    bodhi_segment_facts facts = {.busy = 1};
    int64_t n = 0;
    CHECK(bodhi_open(home, 0, &store) == BODHI_OK);
    CHECK(bodhi_dataset_open(store, "/run", "one", 3, 0, &dataset) == BODHI_OK);
    for (int64_t until = now_ms() + SOON_MS; facts.busy && now_ms() < until; (void)usleep(10000)) {
        CHECK(bodhi_dataset_segments(dataset, &facts, 1, &n) == BODHI_OK && n == 1);
    }
    CHECK(!facts.busy); /* nobody pushes any more */
    bodhi_dataset_close(dataset);
    bodhi_close(store);
    stop();
}

static void test_refused_frames(void) {
    begin("frames for which there is no room");
    const char *servers[1] = {socket_path};
    float positions[ATOMS * 3];
    bodhi_push_options options = {.timeout_ms = 300, .batch_bytes = 1};
    bodhi_pusher *pusher;
    bodhi_push_facts facts;
    start((bodhi_serve_options){.quota = 8000});
    CHECK(bodhi_push_open(servers, 1, "/run", NULL, 0, &options, &pusher) == BODHI_OK);
    int status = BODHI_OK;
    int64_t pushed = 0;
    for (; pushed < 50 && status == BODHI_OK; pushed++) {
        bodhi_frame frame = frame_of(pushed, positions);
        status = bodhi_push(pusher, &frame);
    }
    CHECK(status == BODHI_ERROR_FULL);
    bodhi_push_query(pusher, &facts);
    CHECK(facts.acknowledged < 8 && facts.in_flight > 0);
    bodhi_push_abandon(pusher);
    stop();
}

static bool next_message(int fd, wire_parser *parser) {
    for (;;) {
        unsigned char *at;
        size_t space = wire_space(parser, &at);
        ssize_t got = recv(fd, at, space, 0);
        CHECK(got > 0);
        enum wire_result result = wire_took(parser, (size_t)got);
        CHECK(result == WIRE_MORE || result == WIRE_MESSAGE);
        if (result == WIRE_MESSAGE) {
            return true;
        }
    }
}

enum { LOST = 6 };

/* A server that takes frames and dies with them. */
static void *take_and_die(void *argument) {
    int fd = accept4(*(const int *)argument, NULL, NULL, SOCK_CLOEXEC);
    wire_parser parser = {.from_client = true};
    unsigned char message[WIRE_HEADER + WIRE_OPENED_BYTES];
    wire_opened nothing = {0};
    CHECK(fd >= 0 && next_message(fd, &parser) && parser.verb == WIRE_OPEN);
    wire_write_opened(message + WIRE_HEADER, &nothing);
    wire_part part = {message + WIRE_HEADER, WIRE_OPENED_BYTES};
    wire_header(message, WIRE_OPENED, &part, 1);
    CHECK(send(fd, message, sizeof message, MSG_NOSIGNAL) == (ssize_t)sizeof message);
    for (int i = 0; i < LOST; i++) {
        CHECK(next_message(fd, &parser) && parser.verb == WIRE_FRAME);
    }
    wire_free(&parser);
    (void)close(fd);
    (void)close(*(const int *)argument);
    return NULL;
}

static int listening(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    (void)snprintf(address.sun_path, sizeof address.sun_path, "%.107s", path);
    (void)unlink(path);
    CHECK(bind(fd, (struct sockaddr *)&address, sizeof address) == 0 && listen(fd, 1) == 0);
    return fd;
}

/* Push frames, of which the server at `ends` takes some and dies. `moved`: by so much beside what others have. */
static bodhi_pusher *push_to_the_lost(int *ends, const char *const *servers, int n_servers, float moved) {
    float positions[ATOMS * 3];
    bodhi_push_options options = {.timeout_ms = SOON_MS};
    bodhi_pusher *pusher;
    pthread_t one;
    CHECK(pthread_create(&one, NULL, take_and_die, ends) == 0);
    CHECK(bodhi_push_open(servers, n_servers, "/run", NULL, 0, &options, &pusher) == BODHI_OK);
    for (int64_t number = 0; number < (int64_t)LOST * n_servers; number++) {
        bodhi_frame frame = frame_of(number, positions);
        positions[0] += moved;
        CHECK(bodhi_push(pusher, &frame) == BODHI_OK);
    }
    CHECK(pthread_join(one, NULL) == 0);
    return pusher;
}

/* A frame that was sent when the server broke off is sent again; an alien of it there does not count. */
static void test_lost_server(void) {
    begin("a server that is lost with frames on their way");
    const char *servers[1] = {socket_path};
    bodhi_push_facts facts;
    int ends = listening(socket_path);
    write_frames("/run", "", BODHI_ALIEN, 0, 3);
    bodhi_pusher *pusher = push_to_the_lost(&ends, servers, 1, 0);
    start((bodhi_serve_options){0});
    CHECK(bodhi_push_flush(pusher) == BODHI_OK);
    bodhi_push_query(pusher, &facts);
    CHECK(facts.acknowledged == LOST && facts.in_flight == 0 && facts.given_again == LOST);
    CHECK(bodhi_push_close(pusher) == BODHI_OK);
    wire_link link = opened(0, no_token, "/run", "");
    CHECK(wire_get64(link.in.body) == LOST);
    link_close(&link);
    stop();
}

/* What it had goes to another one. */
static void test_server_lost_for_good(void) {
    begin("a server that is lost for good");
    char lost[160];
    (void)snprintf(lost, sizeof lost, "%s-lost", socket_path);
    const char *servers[2] = {socket_path, lost};
    int ends = listening(lost);
    start((bodhi_serve_options){0});
    bodhi_pusher *pusher = push_to_the_lost(&ends, servers, 2, 0);
    CHECK(bodhi_push_flush(pusher) == BODHI_OK);
    CHECK(bodhi_push_close(pusher) == BODHI_OK);
    wire_link link = opened(0, no_token, "/run", "");
    CHECK(wire_get64(link.in.body) == (uint64_t)2 * LOST);
    link_close(&link);
    stop();
}

/* The store got other frames of these numbers meanwhile: the pusher is told. */
static void test_server_back_with_others(void) {
    begin("a server that comes back with other frames");
    const char *servers[1] = {socket_path};
    int ends = listening(socket_path);
    bodhi_pusher *pusher = push_to_the_lost(&ends, servers, 1, 1);
    write_frames("/run", "", BODHI_NATIVE, 0, LOST);
    start((bodhi_serve_options){0});
    CHECK(bodhi_push_flush(pusher) == BODHI_ERROR_CONFLICT);
    bodhi_push_abandon(pusher);
    stop();
}

/* A frame that is there is taken once more if it is the same to the last bit. */
static void test_other_frames(void) {
    begin("frames of one number that differ");
    float positions[ATOMS * 3];
    float box[6] = {30, 40, 50, 90, 80, 70};
    bodhi_store *store;
    bodhi_dataset *dataset;
    bodhi_writer *writer;
    CHECK(bodhi_open(home, BODHI_CREATE, &store) == BODHI_OK);
    CHECK(bodhi_dataset_open(store, "/run", NULL, 0, BODHI_CREATE, &dataset) == BODHI_OK);
    CHECK(bodhi_writer_open(dataset, BODHI_NATIVE, NULL, &writer) == BODHI_OK);
    bodhi_frame frame = frame_of(1, positions);
    frame.box = box;
    CHECK(bodhi_append(writer, &frame) == BODHI_OK);
    CHECK(bodhi_append(writer, &frame) == BODHI_EXISTS);
    frame.time = 1;
    CHECK(bodhi_append(writer, &frame) == BODHI_ERROR_CONFLICT);
    frame.time = 0;
    box[5] = 71;
    CHECK(bodhi_append(writer, &frame) == BODHI_ERROR_CONFLICT);
    box[5] = 70;
    positions[ATOMS * 3 - 1] += 1;
    CHECK(bodhi_append(writer, &frame) == BODHI_ERROR_CONFLICT);
    CHECK(bodhi_writer_close(writer) == BODHI_OK);
    bodhi_dataset_close(dataset);
    bodhi_close(store);
}

/* --- Authors ----------------------------------------------------------------------------------------------------- */

static int open_as(const char *name, const char *identity) {
    wire_link link = dialled();
    int status = link_open(&link, WIRE_PUSHES, no_token, name, "one", 3, identity, now_ms() + SOON_MS);
    link_close(&link);
    return status;
}

/* Frames of one simulation, or of a trajectory, get none of another one; without frames a dataset is anybody's. */
static void test_authors(void) {
    begin("whose frames a dataset has");
    write_frames("/run", "one", BODHI_NATIVE, 0, 3);
    start((bodhi_serve_options){0});
    CHECK(open_as("/run", "this") == BODHI_OK);
    CHECK(open_as("/run", "another") == BODHI_ERROR_CONFLICT);
    CHECK(open_as("/run", "this") == BODHI_OK && open_as("/run", "") == BODHI_OK);
    CHECK(open_as("/new", "this") == BODHI_OK);
    int status;
    for (int tries = 100; (status = open_as("/new", "another")) == BODHI_ERROR_CONFLICT && tries > 0; tries--) {
        (void)usleep(10000); /* until the server has seen that the first one is gone */
    }
    CHECK(status == BODHI_OK);
    stop();
    write_attachment("x-origin.json", (const unsigned char *)"{}", 2);
    start((bodhi_serve_options){0});
    CHECK(open_as("/run", "this") == BODHI_ERROR_CONFLICT);
    stop();
}

/* --- Rights ------------------------------------------------------------------------------------------------------ */

/* What another user gets: 0 if nothing, 1 if answers but no stop, 2 if even that. */
static int as_nobody(void) {
    pid_t child = fork();
    if (child == 0) {
        wire_link link = {.fd = -1};
        int got = 0;
        if (setuid(NOBODY) == 0 && link_dial(&link, socket_path, 0, NULL, 0, now_ms() + SOON_MS) == BODHI_OK &&
            link_open(&link, 0, no_token, "/run", "one", 3, "", now_ms() + SOON_MS) == BODHI_OK) {
            unsigned char number[8] = {0};
            got = ask(&link, WIRE_READ, number, 8, WIRE_PLACES) == BODHI_OK;
            got += got == 1 && ask(&link, WIRE_STOP, NULL, 0, WIRE_STOPPING) == BODHI_OK;
        }
        _exit(got);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void test_rights(void) {
    begin("other users");
    static const uint32_t allowed[1] = {NOBODY};
    wire_link link = {.fd = -1};
    write_frames("/run", "one", BODHI_NATIVE, 0, 3);
    start((bodhi_serve_options){0});
    CHECK(link_dial(&link, socket_path, geteuid() + 1, NULL, 0, now_ms() + SOON_MS) == BODHI_ERROR_UNSAFE);
    CHECK(geteuid() != 0 || as_nobody() == 0);
    stop();
    start((bodhi_serve_options){.allowed = allowed, .n_allowed = 1});
    CHECK(geteuid() != 0 || as_nobody() == 1);
    link = dialled();
    CHECK(ask(&link, WIRE_STOP, NULL, 0, WIRE_STOPPING) == BODHI_OK && pthread_join(thread, NULL) == 0);
    CHECK(ended == BODHI_END);
    link_close(&link);
    bodhi_server_close(server);
    (void)close(listener);
    start((bodhi_serve_options){.idle_ms = 200, .message_ms = 200});
    link = opened(0, no_token, "/run", "one");
    CHECK(link_receive(&link, now_ms() + SOON_MS) == BODHI_ERROR_UNREACHABLE); /* it was silent for too long */
    link_close(&link);
    stop();
}

/* What a server of another machine is, made up here: it proves to have `key`, or says `refusal`. */
typedef struct {
    int listener;
    const char *key;
    uint32_t refusal;
    bool is_silent;
} gate;

static void *admit(void *argument) {
    const gate *g = argument;
    uint8_t greeting[40] = "BdhAuth1";
    uint8_t answer[64];
    uint8_t proof[6 + 64];
    uint8_t reply[36];
    int fd = accept4(g->listener, NULL, NULL, SOCK_CLOEXEC);
    CHECK(fd >= 0 && send(fd, greeting, sizeof greeting, MSG_NOSIGNAL) == (ssize_t)sizeof greeting);
    CHECK(recv(fd, answer, sizeof answer, MSG_WAITALL) == (ssize_t)sizeof answer);
    memcpy(proof, "server", 6); // NOLINT(bugprone-not-null-terminated-result): lengths tell the end
    memcpy(proof + 6, greeting + 8, 32);
    memcpy(proof + 38, answer, 32);
    wire_put32(reply, g->refusal);
    bodhi_hmac(g->key, strlen(g->key), proof, sizeof proof, reply + 4);
    if (!g->is_silent) {
        CHECK(send(fd, reply, sizeof reply, MSG_NOSIGNAL) == (ssize_t)sizeof reply);
    } else {
        (void)recv(fd, answer, 1, 0); /* until the client gives up */
    }
    (void)close(fd);
    return NULL;
}

static int dial_gate(gate g) {
    static const uint8_t key[] = "0123456789abcdef";
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof name;
    char address[64];
    pthread_t one;
    wire_link link = {.fd = -1};
    g.listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(bind(g.listener, (struct sockaddr *)&name, size) == 0 && listen(g.listener, 1) == 0);
    CHECK(getsockname(g.listener, (struct sockaddr *)&name, &size) == 0);
    (void)snprintf(address, sizeof address, "127.0.0.1:%u", ntohs(name.sin_port));
    CHECK(pthread_create(&one, NULL, admit, &g) == 0);
    int64_t began = now_ms();
    int status = link_dial(&link, address, 0, key, 16, now_ms() + (g.is_silent ? 300 : SOON_MS));
    CHECK(now_ms() - began < (int64_t)2 * SOON_MS);
    link_close(&link);
    CHECK(pthread_join(one, NULL) == 0);
    (void)close(g.listener);
    return status;
}

static void test_admission(void) {
    begin("admission");
    char path[100];
    uint8_t key[KEY_MOST];
    size_t size;
    CHECK(dial_gate((gate){.key = "0123456789abcdef"}) == BODHI_OK);
    CHECK(dial_gate((gate){.key = "0123456789abcdeX"}) == BODHI_ERROR_UNSAFE);
    CHECK(dial_gate((gate){.key = "0123456789abcdef", .refusal = 1}) == BODHI_ERROR_UNSAFE);
    CHECK(dial_gate((gate){.key = "0123456789abcdef", .is_silent = true}) == BODHI_ERROR_UNREACHABLE);
    (void)snprintf(path, sizeof path, "%s/key", root);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && write(fd, "0123456789abcdef\n", 17) == 17 && close(fd) == 0);
    CHECK(link_read_key(path, key, &size) == BODHI_OK && size == 16);
    CHECK(chmod(path, 0640) == 0 && link_read_key(path, key, &size) == BODHI_ERROR_UNSAFE);
}

/* An answer to another question is none. */
static void *answer_wrongly(void *argument) {
    int fd = *(const int *)argument;
    unsigned char message[64];
    unsigned char body[16] = {0};
    wire_part part = {body, sizeof body};
    CHECK(recv(fd, message, 24, MSG_WAITALL) == 24);
    wire_header(message, WIRE_ACK, &part, 1);
    memcpy(message + WIRE_HEADER, body, sizeof body);
    CHECK(send(fd, message, WIRE_HEADER + 16, MSG_NOSIGNAL) == WIRE_HEADER + 16);
    return NULL;
}

static void test_wrong_answers(void) {
    begin("an answer that does not fit");
    int ends[2];
    pthread_t one;
    static char name[] = "x";
    unsigned char number[8] = {0};
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    wire_link link = {.fd = ends[0], .address = name};
    CHECK(pthread_create(&one, NULL, answer_wrongly, &ends[1]) == 0);
    CHECK(ask(&link, WIRE_HAVE, number, 8, WIRE_KINDS) == BODHI_ERROR_PROTOCOL);
    CHECK(pthread_join(one, NULL) == 0);
    link_close(&link);
    (void)close(ends[1]);
}

/* --- Turns ------------------------------------------------------------------------------------------------------- */

static void send_read(wire_link *link, int64_t number) {
    unsigned char body[8];
    wire_part part = {body, sizeof body};
    wire_put64(body, (uint64_t)number);
    CHECK(link_send_message(link, WIRE_READ, &part, 1, now_ms() + SOON_MS) == BODHI_OK);
}

static bool is_granted(wire_link *link, int64_t wait_ms) {
    int status = link_receive(link, now_ms() + wait_ms);
    CHECK(status == BODHI_END || (status == BODHI_OK && link->in.verb == WIRE_PLACES && link->n_descriptors == 1));
    return status == BODHI_OK;
}

static void test_turns(void) {
    begin("turns");
    wire_link *links[4];
    write_frames("/run", "one", BODHI_NATIVE, 0, 40);
    for (int waits = 0; waits < 2; waits++) {
        start((bodhi_serve_options){.serialize_reads = 1, .message_ms = waits == 0 ? 30000 : 300});
        for (int i = 0; i < 4; i++) {
            links[i] = malloc(sizeof *links[i]);
            CHECK(links[i] != NULL);
            *links[i] = opened(0, no_token, "/run", "one");
        }
        send_read(links[0], 0);
        CHECK(is_granted(links[0], SOON_MS));
        for (int i = 1; i < 4; i++) {
            send_read(links[i], i < 3 ? 20 : 39); /* two are neighbours */
            CHECK(waits == 1 || !is_granted(links[i], 60));
        }
        if (waits == 0) {
            CHECK(link_send_message(links[0], WIRE_DONE, NULL, 0, now_ms() + SOON_MS) == BODHI_OK);
            bool last = is_granted(links[3], 60);
            for (int i = 1; i < 3; i++) {
                CHECK(last || is_granted(links[i], SOON_MS));
            }
        } else { /* the first never says that it is done */
            for (int i = 1; i < 4; i++) {
                CHECK(is_granted(links[i], SOON_MS));
            }
        }
        for (int i = 0; i < 4; i++) {
            link_close(links[i]);
            free(links[i]);
        }
        stop();
    }
}

/* --- Parts ------------------------------------------------------------------------------------------------------- */

static void test_slots(void) {
    begin("slots");
    slot_list list = {0};
    slot slots[5] = {{0}};
    for (uint64_t i = 0; i < 5; i++) {
        slots[i].number = i;
        slots_append(&list, &slots[i]);
    }
    CHECK(slots_take_number(&list, 2) == &slots[2] && list.n == 4);
    CHECK(slots_take_number(&list, 4) == &slots[4] && list.n == 3 && slots_take_number(&list, 9) == NULL);
    slots_append(&list, &slots[2]);
    CHECK(slots_take(&list) == &slots[0] && slots_take_number(&list, 1) == &slots[1]);
    CHECK(slots_take(&list) == &slots[3] && slots_take(&list) == &slots[2] && slots_take(&list) == NULL);
}

static enum wire_result feed(enum wire_verb verb, size_t size, uint32_t max_frame) {
    wire_parser parser = {.from_client = true, .max_frame = max_frame};
    static unsigned char message[WIRE_HEADER + 4096];
    size_t used;
    wire_part part = {message + WIRE_HEADER, size};
    wire_header(message, verb, &part, 1);
    enum wire_result result = wire_feed(&parser, message, WIRE_HEADER + size, &used);
    wire_free(&parser);
    return result;
}

static void test_limits(void) {
    begin("what a message may be");
    CHECK(feed(WIRE_HAVE, 16, 0) == WIRE_MESSAGE && feed(WIRE_HAVE, 12, 0) == WIRE_TOO_LONG);
    CHECK(feed(WIRE_LIST, 16, 0) == WIRE_MESSAGE && feed(WIRE_LIST, 24, 0) == WIRE_TOO_LONG);
    CHECK(feed(WIRE_FRAME, 1200, 0) == WIRE_MESSAGE && feed(WIRE_FRAME, 1200, 1000) == WIRE_TOO_LONG);
    CHECK(feed(WIRE_ACK, 16, 0) == WIRE_BAD_VERB && feed(WIRE_OPENED, WIRE_OPENED_BYTES, 0) == WIRE_BAD_VERB);
    wire_parser parser = {.from_client = true};
    unsigned char message[WIRE_HEADER + 8] = {0};
    size_t used;
    wire_part part = {message + WIRE_HEADER, 8};
    wire_header(message, WIRE_HAVE, &part, 1);
    message[WIRE_HEADER + 3] = 1;
    CHECK(wire_feed(&parser, message, sizeof message, &used) == WIRE_BAD_CHECKSUM);
    wire_free(&parser);
}

int main(void) {
    CHECK(make_scratch(root, sizeof root, "/tmp") && chmod(root, 0755) == 0);
    (void)snprintf(home, sizeof home, "%s/store", root);
    (void)snprintf(socket_path, sizeof socket_path, "%s/socket", root);
    test_slots();
    test_limits();
    test_wrong_answers();
    test_admission();
    test_rights();
    test_questions();
    test_reading();
    test_acknowledgements();
    test_refused_frames();
    test_lost_server();
    test_server_lost_for_good();
    test_server_back_with_others();
    test_other_frames();
    test_authors();
    test_turns();
    remove_all(root);
    return 0;
}
