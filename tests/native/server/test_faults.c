/* A server, a pusher and a reader of which the Nth system call fails, for every N, on either side: nothing crashes or
 * hangs, and what was acknowledged is there. test_store.c does the same to the store alone. */
#include "../dials.h"
#include "../faults.h"
#include "../scratch.h"
#include "base/threads.h"
#include "running.h"

enum { WORKERS = 6, FRAMES = 6, PATIENCE_MS = 150, MUCH_PATIENCE_MS = 5000 };

/* Where nothing may be lost, a busy machine is given time. */
static int patience(void) {
    enum fault now = present_fault();
    return now == INTERRUPTED || now == CUT_SHORT ? MUCH_PATIENCE_MS : PATIENCE_MS;
}

static void *serve(void *server) {
    (void)!bodhi_server_run(server); /* it may end by a fault: its clients then have to see to themselves */
    return NULL;
}

/* Push frames; acknowledged[number] is set for what was acknowledged. */
static void push_frames(bool *acknowledged) {
    const char *servers[1] = {socket_path};
    bodhi_push_options options = {.durable = 1, .timeout_ms = patience(), .batch_bytes = 2500};
    bodhi_pusher *pusher;
    if (bodhi_push_open(servers, 1, "run", NULL, 0, &options, &pusher) != BODHI_OK) {
        return;
    }
    int64_t taken = 0;
    for (int64_t number = 0; number < FRAMES; number++) {
        float positions[ATOMS * 3];
        bodhi_frame frame = frame_of(number, positions);
        if (bodhi_push(pusher, &frame) != BODHI_OK) {
            break;
        }
        taken = number + 1;
        if (number % 2 == 1 && bodhi_push_flush(pusher) == BODHI_OK) {
            memset(acknowledged, 1, (size_t)taken);
        }
    }
    if (bodhi_push_close(pusher) == BODHI_OK) {
        memset(acknowledged, 1, (size_t)taken);
    }
}

/* Ask where frames lie; an answer is true. */
static void read_places(void) {
    const wire_open open = {.name = "run", .identity = ""};
    static const uint64_t numbers[FRAMES] = {0, 1, 2, 3, 4, 5};
    wire_link link = {.fd = -1};
    wire_part part = {numbers, sizeof numbers};
    int64_t deadline = now_ms() + patience();
    if (link_dial(&link, socket_path, geteuid(), NULL, 0, deadline) != BODHI_OK) {
        return;
    }
    int status = link_open(&link, &open, NULL, deadline);
    if (status == BODHI_OK) {
        const wire_question question = {.last = FRAMES};
        const wire_part asked = {&question, sizeof question};
        status = link_ask(&link, WIRE_RUNS, &asked, 1, deadline);
    }
    if (status == BODHI_OK) {
        status = link_ask(&link, WIRE_READ, &part, 1, deadline);
    }
    for (size_t i = 0; status == BODHI_OK && i < FRAMES; i++) {
        wire_place at;
        memcpy(&at, link.records + i * sizeof at, sizeof at);
        CHECK(at.descriptor >= -1 && (at.descriptor < link.n_descriptors || link.n_descriptors == 0));
    }
    link_close(&link);
}

/* Read frames by places that the server grants; what is delivered is right. */
static void read_served(void) {
    int64_t numbers[FRAMES + 1];
    served_dataset d = {.link = {.fd = -1}, .timeout_ms = patience()};
    bodhi_reader *reader = NULL;
    bodhi_frame frame;
    int status = link_dial(&d.link, socket_path, geteuid(), NULL, 0, now_ms() + patience());
    for (int i = 0; i <= FRAMES; i++) {
        numbers[i] = FRAMES - 1 - i; /* -1 is a miss */
    }
    if (status == BODHI_OK) {
        status = served_open(&d, "run", NULL, 0);
    }
    if (status == BODHI_OK) {
        status = served_reader_open(&d, numbers, FRAMES + 1, NULL, &reader);
    }
    for (int i = 0; status >= BODHI_OK && (status = bodhi_reader_next(reader, &frame)) != BODHI_END; i++) {
        CHECK(frame.number == numbers[i] && (status != BODHI_OK || frame.number >= 0));
        for (int64_t k = 0; status == BODHI_OK && k < frame.n_atoms * 3; k++) {
            CHECK(frame.positions[k] == value_of(frame.number, k));
        }
    }
    bodhi_reader_close(reader);
    served_close(&d);
}

static void live(bool *acknowledged) {
    int listener = listen_at(socket_path, SOCK_NONBLOCK);
    bodhi_serve_options options = {.listener = listener, .batch_ms = 50, .quota = 1 << 30};
    bodhi_server *server;
    pthread_t thread;
    if (bodhi_server_open(home, &options, &server) == BODHI_OK) {
        CHECK(pthread_create(&thread, NULL, serve, server) == 0);
        push_frames(acknowledged);
        read_places();
        read_served();
        CHECK(write(bodhi_server_wake(server), "x", 1) == 1);
        CHECK(pthread_join(thread, NULL) == 0);
        bodhi_server_close(server);
    }
    (void)close(listener);
}

static void check_afterwards(const bool *acknowledged) {
    const int64_t numbers[FRAMES] = {0, 1, 2, 3, 4, 5};
    bodhi_dataset *dataset = open_beside("run", "", BODHI_CREATE);
    bodhi_reader *reader;
    bodhi_frame frame;
    int status;
    CHECK(bodhi_reader_open(dataset, numbers, FRAMES, NULL, &reader) == BODHI_OK);
    while ((status = bodhi_reader_next(reader, &frame)) != BODHI_END) {
        CHECK(status == BODHI_OK || !acknowledged[frame.number]);
        for (int64_t i = 0; status == BODHI_OK && i < frame.n_atoms * 3; i++) {
            CHECK(frame.positions[i] == value_of(frame.number, i));
        }
    }
    bodhi_reader_close(reader);
    close_beside(dataset);
}

static void *hang(void *argument) {
    (void)argument;
    (void)sleep(60);
    (void)fprintf(stderr, "hung with %s\n", doing);
    abort();
}

/* Every WORKERS-th call fails, from the `first` on, till there are no more. */
static void test_fault(enum fault kind, int first) {
    long n = first;
    long calls;
    pthread_t watch;
    do {
        bool acknowledged[FRAMES] = {false};
        remove_all(home);
        DOING("%s, call %ld", fault_names[kind], n);
        CHECK(pthread_create(&watch, NULL, hang, NULL) == 0);
        begin_fault(kind, n, false);
        live(acknowledged);
        calls = end_fault();
        CHECK(pthread_cancel(watch) == 0 && pthread_join(watch, NULL) == 0);
        CHECK(acknowledged[FRAMES - 1] || (kind != INTERRUPTED && kind != CUT_SHORT)); /* nothing is lost by these */
        check_afterwards(acknowledged);
        n += WORKERS;
    } while (calls >= n - WORKERS);
}

static int work(int worker) {
    make_root();
    install_faults();
    for (int kind = BROKEN; kind < N_FAULTS; kind++) {
        test_fault((enum fault)kind, worker + 1);
    }
    await_dials();
    remove_faults();
    remove_root();
    return 0;
}

/* Waiting is most of the work, so that it is divided among processes. */
int main(void) {
    for (int i = 0; i < WORKERS; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            return work(i);
        }
    }
    int failed = 0;
    for (int status; wait(&status) > 0;) {
        failed += status != 0;
    }
    return failed > 0;
}
