/* What a server allows: to whom, when, and how much. */
#include <netinet/in.h>
#include <poll.h>

#include "base/threads.h"
#include "running.h"

enum { NOBODY = 65534 };

/* --- Rights ------------------------------------------------------------------------------------------------------- */

/* What comes of something that another user does; `otherwise`: what would, where none can be had. */
static int as_nobody(int (*act)(void), int otherwise) {
    if (geteuid() != 0) {
        return otherwise;
    }
    pid_t child = fork();
    if (child == 0) {
        _exit(setuid(NOBODY) == 0 ? act() : -1);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* What one gets: 0 if nothing, 1 if answers but no dataset to push to, 2 if even that. */
static int ask_and_push(void) {
    unsigned char number[8] = {0};
    wire_link link = {.fd = -1};
    if (link_dial(&link, socket_path, 0, NULL, 0, now_ms() + SOON_MS) != BODHI_OK ||
        open_as(&link, 0, "/run", "one", "") != BODHI_OK || ask(&link, WIRE_READ, number, 8) != BODHI_OK) {
        return 0;
    }
    wire_link pushing = {.fd = -1};
    return link_dial(&pushing, socket_path, 0, NULL, 0, now_ms() + SOON_MS) == BODHI_OK &&
                   open_as(&pushing, WIRE_PUSHES, "/run", "one", "") == BODHI_OK
               ? 2
               : 1;
}

/* Connect until it is refused; how often it was not. */
static int crowd(void) {
    int n = 0;
    for (int status = BODHI_OK; status == BODHI_OK; n++) {
        wire_link link = {.fd = -1}; /* which stays open */
        status = link_dial(&link, socket_path, 0, NULL, 0, now_ms() + SOON_MS);
        status = status == BODHI_OK ? question(&link, WIRE_STATUS, NULL, 0, 0) : status;
    }
    return strstr(bodhi_message(), "as many connections as it may have, in all or of others") != NULL ? n - 1 : -1;
}

static void test_rights(void) {
    begin("other users");
    static const uint32_t allowed[1] = {NOBODY};
    wire_link link = {.fd = -1};
    write_frames("/run", "one", BODHI_NATIVE, 0, 3);
    start((bodhi_serve_options){0});
    CHECK(link_dial(&link, socket_path, geteuid() + 1, NULL, 0, now_ms() + SOON_MS) == BODHI_ERROR_UNSAFE);
    CHECK(as_nobody(ask_and_push, 0) == 0);
    stop();
    start((bodhi_serve_options){.allowed = allowed, .n_allowed = 1, .max_connections = 8});
    CHECK(as_nobody(crowd, 4) == 4);
    stop();
    start((bodhi_serve_options){.allowed = allowed, .n_allowed = 1});
    CHECK(as_nobody(ask_and_push, 1) == 1);
    link = dialled();
    CHECK(question(&link, WIRE_STATUS, NULL, 0, 0) == BODHI_OK);
    CHECK(get64(link.records + (size_t)COUNT_ADMITTED * 8) == (geteuid() == 0 ? 3 : 1));
    link_close(&link);
    stop();
    start((bodhi_serve_options){.idle_ms = 200, .message_ms = 200});
    link = opened(0, "/run", "one");
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
    uint8_t greeting[40] = "BdhAuth2";
    uint8_t answer[64];
    uint8_t reply[36];
    int fd = accept4(g->listener, NULL, NULL, SOCK_CLOEXEC);
    CHECK(fd >= 0 && send(fd, greeting, sizeof greeting, MSG_NOSIGNAL) == (ssize_t)sizeof greeting);
    CHECK(recv(fd, answer, sizeof answer, MSG_WAITALL) == (ssize_t)sizeof answer);
    const mac_part proven[] = {{"server", 6}, {greeting + 8, 32}, {answer, 32}};
    put32(reply, g->refusal);
    CHECK(mac_hmac(g->key, strlen(g->key), proven, 3, reply + 4) == BODHI_OK);
    if (!g->is_silent) {
        CHECK(send(fd, reply, sizeof reply, MSG_NOSIGNAL) == (ssize_t)sizeof reply);
    } else {
        (void)recv(fd, answer, 1, 0); /* until the client gives up */
    }
    (void)close(fd);
    return NULL;
}

/* What comes of pushing to a server. */
static int push_to(const char *address, const char *key_file) {
    const bodhi_push_options options = {.key_file = key_file, .timeout_ms = SOON_MS};
    bodhi_pusher *pusher;
    return bodhi_push_open(&address, 1, "run", NULL, 0, &options, &pusher);
}

static int dial_gate(gate g, const char *key_file) {
    static const uint8_t key[] = "0123456789abcdef";
    struct sockaddr_in name;
    char address[64];
    pthread_t one;
    wire_link link = {.fd = -1};
    g.listener = listen_by_tcp(&name, 0);
    (void)snprintf(address, sizeof address, "127.0.0.1:%u", ntohs(name.sin_port));
    CHECK(pthread_create(&one, NULL, admit, &g) == 0);
    int64_t began = now_ms();
    int status = key_file != NULL ? push_to(address, key_file)
                                  : link_dial(&link, address, 0, key, 16, now_ms() + (g.is_silent ? 300 : SOON_MS));
    CHECK(now_ms() - began < (int64_t)2 * SOON_MS);
    link_close(&link);
    (void)shutdown(g.listener, SHUT_RDWR); /* nobody else comes */
    CHECK(pthread_join(one, NULL) == 0);
    (void)close(g.listener);
    return status;
}

static void test_admission(void) {
    begin("admission");
    char path[100];
    uint8_t key[KEY_MOST];
    size_t size;
    wire_link link = {.fd = -1};
    char address[] = "127.0.0.1:1";
    CHECK(link_dial(&link, address, 0, NULL, 0, now_ms() + SOON_MS) == BODHI_ERROR_ARGUMENT); /* it has no key */
    link_close(&link);
    CHECK(dial_gate((gate){.key = "0123456789abcdef"}, NULL) == BODHI_OK);
    CHECK(dial_gate((gate){.key = "0123456789abcdeX"}, NULL) == BODHI_ERROR_UNSAFE);
    CHECK(dial_gate((gate){.key = "0123456789abcdef", .refusal = 1}, NULL) == BODHI_ERROR_UNSAFE);
    CHECK(dial_gate((gate){.key = "0123456789abcdef", .is_silent = true}, NULL) == BODHI_ERROR_UNREACHABLE);
    (void)snprintf(path, sizeof path, "%s/key", root);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && write(fd, "0123456789abcdef\n", 17) == 17 && close(fd) == 0);
    CHECK(link_read_key(path, key, &size) == BODHI_OK && size == 16);
    CHECK(dial_gate((gate){.key = "0123456789abcdef"}, path) == BODHI_ERROR_UNREACHABLE); /* it ends once we are in */
    CHECK(dial_gate((gate){.key = "0123456789abcdeX"}, path) == BODHI_ERROR_UNSAFE);
    CHECK(chmod(path, 0640) == 0 && link_read_key(path, key, &size) == BODHI_ERROR_UNSAFE);
}

/* --- Turns -------------------------------------------------------------------------------------------------------- */

static void send_read(wire_link *link, int64_t number) {
    unsigned char body[8];
    wire_part part = {body, sizeof body};
    put64(body, (uint64_t)number);
    CHECK(link_send_message(link, WIRE_READ, &part, 1, now_ms() + SOON_MS) == BODHI_OK);
}

static bool is_granted(wire_link *link, int64_t wait_ms) {
    int status = link_receive(link, now_ms() + wait_ms);
    CHECK(status == BODHI_END || (status == BODHI_OK && link->count == 1 && link->n_descriptors == 1));
    return status == BODHI_OK;
}

/* Which of two is answered first; within one turn it may be either. */
static bool is_before(const wire_link *one, const wire_link *other) {
    struct pollfd polled[2] = {{.fd = one->fd, .events = POLLIN}, {.fd = other->fd, .events = POLLIN}};
    CHECK(poll(polled, 2, SOON_MS) > 0);
    return polled[0].revents != 0;
}

/* A turn ends when who has it says so, is silent, or is gone. */
static void test_turns(void) {
    enum { DONE, SILENT, GONE, ENDS };
    begin("turns");
    wire_link *links[4];
    write_frames("/run", "one", BODHI_NATIVE, 0, 40);
    for (int end = DONE; end < ENDS; end++) {
        start((bodhi_serve_options){.serialize_reads = 1, .message_ms = end == SILENT ? 300 : 30000});
        for (int i = 0; i < 4; i++) {
            links[i] = malloc(sizeof *links[i]);
            CHECK(links[i] != NULL);
            *links[i] = opened(0, "/run", "one");
        }
        send_read(links[0], 0);
        CHECK(is_granted(links[0], SOON_MS));
        for (int i = 1; i < 4; i++) {
            send_read(links[i], i < 3 ? 20 : 39); /* two are neighbours */
            CHECK(end == SILENT || !is_granted(links[i], 60));
        }
        if (end == DONE) {
            CHECK(link_send_message(links[0], WIRE_READ, NULL, 0, now_ms() + SOON_MS) == BODHI_OK);
        } else if (end == GONE) {
            link_close(links[0]);
        }
        if (end != SILENT) {
            if (is_before(links[3], links[1])) {
                CHECK(is_granted(links[3], SOON_MS));
                CHECK(link_send_message(links[3], WIRE_READ, NULL, 0, now_ms() + SOON_MS) == BODHI_OK);
            }
            for (int i = 1; i < 3; i++) {
                CHECK(is_granted(links[i], SOON_MS));
            }
        } else {
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

/* --- Slots and memory --------------------------------------------------------------------------------------------- */

/* A connection that comes from elsewhere than the owner's. */
static wire_link stranger(void) {
    wire_link link = {.fd = -1};
    CHECK(dial_as_stranger(&link) == BODHI_OK);
    return link;
}

static void test_a_full_server(void) {
    begin("strangers with half of all connections, and the owner with the rest");
    enum { HALF = 3 };
    wire_link links[2 * HALF];
    wire_link one_more = {.fd = -1};
    start((bodhi_serve_options){.max_connections = 2 * HALF});
    CHECK(link_dial(&one_more, own.address, 0, (const uint8_t *)"another key, too", 16, now_ms() + SOON_MS) ==
          BODHI_ERROR_UNSAFE);
    CHECK(strstr(bodhi_message(), "refuses the key") != NULL);
    for (int i = 0; i < 2 * HALF; i++) {
        links[i] = i < HALF ? stranger() : dialled();
        CHECK(question(&links[i], WIRE_STATUS, NULL, 0, 0) == BODHI_OK);
        CHECK(i != HALF - 1 || dial_as_stranger(&one_more) == BODHI_ERROR_BUSY);
    }
    wire_link owner = dialled();
    CHECK(open_as(&owner, 0, "/run", "one", "") == BODHI_ERROR_BUSY);
    CHECK(strstr(bodhi_message(), "'himach cache start --connections' allows more") != NULL);
    link_close(&owner);
    for (int i = 0; i < 2 * HALF; i++) {
        link_close(&links[i]);
    }
    stop();
}

static void begin_frame(const wire_link *link, uint32_t size) {
    unsigned char header[WIRE_HEADER];
    wire_header(header, WIRE_FRAME, size);
    CHECK(send(link->fd, header, sizeof header, MSG_NOSIGNAL) == sizeof header);
}

/* Send zeros; returns how many the server takes within a time. */
static size_t send_zeros(const wire_link *link, size_t n, int ms) {
    static const unsigned char zeros[1 << 16];
    size_t sent = 0;
    for (int64_t until = now_ms() + ms; sent < n && now_ms() < until;) {
        size_t left = n - sent;
        ssize_t some = send(link->fd, zeros, left < sizeof zeros ? left : sizeof zeros, MSG_DONTWAIT | MSG_NOSIGNAL);
        sent += some > 0 ? (size_t)some : 0;
        (void)usleep(some > 0 ? 0 : 1000);
    }
    return sent;
}

/* A message has its time, however its bytes come. */
static void test_trickling(void) {
    begin("a message that comes byte by byte");
    start((bodhi_serve_options){.message_ms = 300});
    wire_link link = opened(WIRE_PUSHES, "/run", "one");
    begin_frame(&link, 1200);
    int64_t begun = now_ms();
    while (send(link.fd, "", 1, MSG_NOSIGNAL) == 1) { /* 24 s of them */
        CHECK(now_ms() - begun < (int64_t)2 * SOON_MS);
        (void)usleep(20000);
    }
    CHECK(now_ms() - begun >= 250);
    link_close(&link);
    stop();
}

static void test_memory(void) {
    begin("frames beyond the memory that there is");
    enum { HUGE = 8 << 20 };
    start((bodhi_serve_options){.memory = 4 << 20});
    wire_link large = opened(WIRE_PUSHES, "/run", "one");
    wire_link small = opened(WIRE_PUSHES, "/run", "one");
    begin_frame(&large, HUGE); /* larger than all memory: it comes all the same */
    CHECK(send_zeros(&large, HUGE / 2, SOON_MS) == HUGE / 2);
    send_frame(&small, 0);
    CHECK(link_receive(&small, now_ms() + 1500) == BODHI_END); /* it waits, longer than a batch */
    wire_link reader = opened(0, "/run", "one");               /* and lets others read */
    CHECK(question(&reader, WIRE_RUNS, NULL, 0, 9) == BODHI_OK && reader.count == 0);
    CHECK(send_zeros(&large, HUGE / 2, SOON_MS) == HUGE / 2);
    CHECK(link_answer(&large, WIRE_FRAME, now_ms() + SOON_MS) == BODHI_ERROR_ARGUMENT); /* zeros are no frame */
    take_acks(&small, 0, 1);
    link_close(&reader);
    link_close(&large);
    link_close(&small);
    stop();
}

/* Connections that have asked and got much hold no memory that others wait for. */
static void test_idle_connections(void) {
    begin("memory of idle connections");
    enum { MANY = 40 };
    static const unsigned char numbers[8 * WIRE_MAX_NUMBERS];
    wire_link idle[MANY];
    start((bodhi_serve_options){.memory = 4 << 20});
    wire_link pusher = opened(WIRE_PUSHES, "/run", "one");
    for (int i = 0; i < MANY; i++) {
        idle[i] = opened(0, "/run", "one");
        CHECK(ask(&idle[i], WIRE_READ, numbers, sizeof numbers) == BODHI_OK);
    }
    send_frame(&pusher, 0);
    take_acks(&pusher, 0, 1);
    for (int i = 0; i < MANY; i++) {
        link_close(&idle[i]);
    }
    link_close(&pusher);
    stop();
}

/* --- Limits ------------------------------------------------------------------------------------------------------- */

static enum wire_result feed(enum wire_verb verb, size_t size) {
    wire_parser parser = {.requests = WIRE_SENDS};
    static unsigned char message[WIRE_HEADER + 4096];
    size_t there = size <= 4096 ? size : 0;
    wire_header(message, verb, size);
    enum wire_result result = feed_bytes(&parser, message, WIRE_HEADER + there);
    wire_free(&parser);
    return result;
}

static void test_limits(void) {
    begin("what a message may be");
    CHECK(feed(WIRE_READ, 16) == WIRE_MESSAGE && feed(WIRE_READ, 12) == WIRE_TOO_LONG);
    CHECK(feed(WIRE_READ, 0) == WIRE_MESSAGE);
    CHECK(feed(WIRE_RUNS, 24) == WIRE_MESSAGE && feed(WIRE_RUNS, 23) == WIRE_TOO_LONG);
    CHECK(feed(WIRE_FETCH, 25 + WIRE_MAX_NAME) == WIRE_TOO_LONG);
    CHECK(feed(WIRE_FRAME, 1200) == WIRE_MESSAGE && feed(WIRE_FRAME, WIRE_MAX_FRAME + 4) == WIRE_TOO_LONG);
    CHECK(feed(WIRE_FRAME, WIRE_MAX_FRAME) == WIRE_MORE);
    CHECK(feed(WIRE_ANSWER, 16) == WIRE_BAD_VERB && feed(WIRE_VERBS, 16) == WIRE_BAD_VERB);
}

int main(void) {
    make_root();
    test_limits();
    test_a_full_server();
    test_trickling();
    test_memory();
    test_idle_connections();
    test_admission();
    test_rights();
    test_turns();
    remove_root();
    return 0;
}
