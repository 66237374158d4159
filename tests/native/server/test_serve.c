/* Tests of server and pusher by themselves, for sanitizers: messages fed byte by byte, a server in a thread, pushers
 * that go on while it is replaced, disks that hang or fail. */
#include "../store/syncs.h"
#include "base/io.h"
#include "running.h"

static void test_parser(void) {
    float positions[6] = {1, 2, 3, 4, 5, 6};
    bodhi_frame frame = {.number = 7, .time = 0.5, .n_atoms = 2, .positions = positions, .forces = positions};
    unsigned char message[WIRE_HEADER + WIRE_FRAME_HEAD + 48];
    wire_write_frame(message + WIRE_HEADER, &frame);
    wire_header(message, WIRE_FRAME, sizeof message - WIRE_HEADER);
    wire_parser parser = {.requests = WIRE_SENDS};
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < sizeof message; i++) {
            enum wire_result result = feed_bytes(&parser, message + i, 1);
            CHECK(result == (i + 1 < sizeof message ? WIRE_MORE : WIRE_MESSAGE));
        }
        bodhi_frame parsed;
        CHECK(wire_parse_frame(parser.body, parser.size, &parsed));
        CHECK(parsed.number == 7 && parsed.n_atoms == 2 && parsed.velocities == NULL && parsed.box == NULL);
        CHECK(parsed.forces[0] == 1 && parsed.forces[5] == 6 && parsed.positions[3] == 4);
        put64(parser.body, BODHI_MAX_NUMBER);
        CHECK(wire_parse_frame(parser.body, parser.size, &parsed) && parsed.number == BODHI_MAX_NUMBER);
        put64(parser.body, BODHI_MAX_NUMBER + 1);
        CHECK(!wire_parse_frame(parser.body, parser.size, &parsed));
    }
    wire_free(&parser);
}

static bool is_open(const char *texts, size_t size) {
    unsigned char body[WIRE_OPEN_HEAD + 16] = {0};
    wire_open open;
    memcpy(body + WIRE_OPEN_HEAD, texts, size);
    return wire_parse_open(body, WIRE_OPEN_HEAD + size, &open);
}

/* A NUL ends the name and the identity, and may be in the generation. */
static void test_names(void) {
    CHECK(is_open("name\0me\0g\0n", 11) && is_open("name\0\0", 6));
    CHECK(!is_open("name\0me", 7) && !is_open("name", 4) && !is_open("\0me\0g", 5) && !is_open("", 0));
}

enum { FRAMES = 400, MANY = 500 /* atoms */, PUSHERS = 3 };

static char other_home[100], other_socket[100];

static void *push_frames(void *argument) {
    const char *servers[2] = {socket_path, other_socket};
    int64_t first = *(const int *)argument * (int64_t)FRAMES;
    static float positions[MANY * 3];
    bodhi_push_options options = {.durable = (int32_t)(first > 0), .timeout_ms = 20000, .batch_bytes = 30000};
    bodhi_pusher *pusher;
    CHECK(bodhi_push_open(servers, 2, "run", NULL, 0, &options, &pusher) == BODHI_OK);
    for (int64_t i = 0; i < FRAMES; i++) {
        bodhi_frame frame = {.number = first + i, .n_atoms = MANY, .positions = positions};
        CHECK(bodhi_push(pusher, &frame) == BODHI_OK);
    }
    bodhi_frame beyond = {.number = BODHI_MAX_NUMBER + 1, .n_atoms = MANY, .positions = positions};
    CHECK(bodhi_push(pusher, &beyond) == BODHI_ERROR_ARGUMENT);
    CHECK(bodhi_push_close(pusher) == BODHI_OK);
    return NULL;
}

static int64_t natives(const char *path) {
    bodhi_store *store;
    bodhi_dataset *dataset;
    bodhi_facts facts;
    CHECK(bodhi_open(path, 0, &store) == BODHI_OK);
    CHECK(bodhi_dataset_open(store, "run", NULL, 0, 0, &dataset) == BODHI_OK);
    CHECK(bodhi_dataset_query(dataset, &facts) == BODHI_OK);
    bodhi_dataset_close(dataset);
    bodhi_close(store);
    return facts.native;
}

static void test_pushing(void) {
    const bodhi_serve_options options = {.batch_ms = 50};
    pthread_t pushers[PUSHERS];
    int numbers[PUSHERS];
    begin("three pushers to two servers");
    (void)snprintf(other_home, sizeof other_home, "%s/other", root);
    (void)snprintf(other_socket, sizeof other_socket, "%s/other-socket", root);
    start(options);
    running other = start_at(other_home, other_socket, options);
    for (int i = 0; i < PUSHERS; i++) {
        numbers[i] = i;
        CHECK(pthread_create(&pushers[i], NULL, push_frames, &numbers[i]) == 0);
    }
    (void)usleep(50000);
    end_running(&own); /* cleanly, so that what it has is known; and it comes back */
    start(options);
    for (int i = 0; i < PUSHERS; i++) {
        CHECK(pthread_join(pushers[i], NULL) == 0);
    }
    stop();
    stop_running(&other);
    CHECK(natives(home) + natives(other_home) >= (int64_t)PUSHERS * FRAMES);
}

static bodhi_pusher *open_pusher(int32_t timeout_ms) {
    const char *servers[1] = {socket_path};
    bodhi_push_options options = {.durable = 1, .timeout_ms = timeout_ms, .batch_bytes = 30000};
    bodhi_pusher *pusher;
    CHECK(bodhi_push_open(servers, 1, "run", NULL, 0, &options, &pusher) == BODHI_OK);
    return pusher;
}

static void push_one(bodhi_pusher *pusher, int64_t number) {
    float positions[MANY * 3] = {(float)number};
    bodhi_frame frame = {.number = number, .n_atoms = MANY, .positions = positions};
    CHECK(bodhi_push(pusher, &frame) == BODHI_OK);
}

static atomic_bool has_flushed;

static void *flush_pusher(void *pusher) {
    CHECK(bodhi_push_flush(pusher) == BODHI_OK);
    atomic_store(&has_flushed, true);
    return NULL;
}

static int64_t acknowledged(const bodhi_pusher *pusher) {
    bodhi_push_facts facts;
    bodhi_push_query(pusher, &facts);
    return facts.acknowledged;
}

/* While a flush hangs, readers are answered, and newcomers, and nothing is acknowledged. */
static void test_a_flush_that_hangs(void) {
    static const unsigned char numbers[16] = {[8] = 1};
    pthread_t flushing;
    begin("a flush that hangs");
    start((bodhi_serve_options){.batch_ms = 50});
    bodhi_pusher *pusher = open_pusher(20000);
    push_one(pusher, 0);
    CHECK(bodhi_push_flush(pusher) == BODHI_OK);
    atomic_store(&syncs_held, true);
    int before = atomic_load(&syncs_begun);
    push_one(pusher, 1);
    CHECK(pthread_create(&flushing, NULL, flush_pusher, pusher) == 0);
    while (atomic_load(&syncs_begun) == before) {
        CHECK(!atomic_load(&has_flushed));
        (void)usleep(1000);
    }
    for (int i = 0; i < 2; i++) {
        wire_link reader = opened(0, "run", "");
        CHECK(get64(reader.records) == 1); /* native frame */
        CHECK(ask(&reader, WIRE_READ, numbers, 16) == BODHI_OK && reader.n_descriptors == 1);
        CHECK(question(&reader, WIRE_RUNS, NULL, 0, 9) == BODHI_OK && reader.count == 1);
        CHECK(question(&reader, WIRE_STATUS, NULL, 0, 0) == BODHI_OK);
        link_close(&reader);
    }
    atomic_store(&syncs_held, false);
    CHECK(pthread_join(flushing, NULL) == 0);
    CHECK(acknowledged(pusher) == 2);
    CHECK(bodhi_push_close(pusher) == BODHI_OK);
    stop();
    CHECK(natives(home) == 2);
}

/* A failed fsync is not tried again: its frames are refused, and kept when they come again, elsewhere. */
static void test_a_flush_that_fails(void) {
    begin("a flush that fails");
    forget_syncs();
    start((bodhi_serve_options){.batch_ms = 50});
    bodhi_pusher *pusher = open_pusher(20000);
    push_one(pusher, 0);
    CHECK(bodhi_push_flush(pusher) == BODHI_OK);
    atomic_store(&sync_fails, true);
    for (int64_t number = 1; number < 5; number++) {
        push_one(pusher, number);
    }
    CHECK(bodhi_push_flush(pusher) == BODHI_OK);
    bodhi_push_facts facts;
    bodhi_push_query(pusher, &facts);
    CHECK(!atomic_load(&sync_fails) && facts.acknowledged == 5 && facts.given_again > 0);
    CHECK(bodhi_push_close(pusher) == BODHI_OK);
    stop();
    CHECK(natives(home) == 5);
}

static atomic_int open_errors; /* of segments, for reading, from now on */
static int (*real_openat)(int directory, const char *path, int flags, mode_t mode);

static int faulty_openat(int directory, const char *path, int flags, mode_t mode) {
    if ((flags & O_ACCMODE) == O_RDONLY && strstr(path, ".seg") != NULL && atomic_load(&open_errors) > 0) {
        (void)atomic_fetch_sub(&open_errors, 1);
        errno = EMFILE;
        return -1;
    }
    return real_openat(directory, path, flags, mode);
}

/* A segment that cannot be opened now is not one whose sync has failed: the frames in it are acknowledged later. */
static void test_a_failed_open(void) {
    begin("a segment that cannot be opened");
    forget_syncs();
    start((bodhi_serve_options){.batch_ms = 50});
    for (int turn = 0; turn < 3; turn++) {
        bodhi_pusher *pusher = open_pusher(10000);
        for (int64_t number = 0; number < 3; number++) {
            push_one(pusher, number);
        }
        CHECK(bodhi_push_flush(pusher) == BODHI_OK);
        CHECK(bodhi_push_close(pusher) == BODHI_OK);
        atomic_store(&open_errors, turn == 0 ? 4 : 0); /* opening the dataset, and each frame */
    }
    CHECK(atomic_load(&open_errors) == 0);
    stop();
    CHECK(natives(home) == 3);
}

int main(void) {
    make_root();
    test_parser();
    test_names();
    test_pushing();
    watch_syncs();
    test_a_flush_that_hangs();
    test_a_flush_that_fails();
    real_openat = bodhi_io.openat;
    bodhi_io.openat = faulty_openat;
    test_a_failed_open();
    remove_root();
    (void)puts("all passed");
    return 0;
}
