/* Tests of server and pusher by themselves, for sanitizers: messages fed byte by byte, a server in a thread, pushers
 * that go on while it is replaced, disks that hang or fail. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "../check.h"
#include "../scratch.h"
#include "base/clock.h"
#include "base/io.h"
#include "bodhi.h"
#include "net/link.h"
#include "net/wire.h"
#include "server/serve.h"

char doing[256];
static char root[64];

/* --- Parser ------------------------------------------------------------------------------------------------------ */

static void test_parser(void) {
    float positions[6] = {1, 2, 3, 4, 5, 6};
    bodhi_frame frame = {.number = 7, .time = 0.5, .n_atoms = 2, .positions = positions, .forces = positions};
    unsigned char message[WIRE_HEADER + WIRE_FRAME_HEAD + 48];
    wire_write_frame(message + WIRE_HEADER, &frame);
    memcpy(message + WIRE_HEADER + WIRE_FRAME_HEAD, positions, 24);
    memcpy(message + WIRE_HEADER + WIRE_FRAME_HEAD + 24, positions, 24);
    wire_part part = {message + WIRE_HEADER, sizeof message - WIRE_HEADER};
    wire_header(message, WIRE_FRAME, &part, 1);
    wire_parser parser = {.from_client = true};
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < sizeof message; i++) {
            size_t used;
            enum wire_result result = wire_feed(&parser, message + i, 1, &used);
            CHECK(used == 1 && result == (i + 1 < sizeof message ? WIRE_MORE : WIRE_MESSAGE));
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
    size_t used;
    message[sizeof message - 1] ^= 1;
    CHECK(wire_feed(&parser, message, sizeof message, &used) == WIRE_BAD_CHECKSUM);
    wire_free(&parser);
}

static void test_names(void) {
    wire_open open;
    const uint8_t token[WIRE_TOKEN] = {0};
    const char names[9] = {'n', 'a', 'm', 'g', 'e', 'n', 'i', 'd', 'e'};
    unsigned char body[WIRE_OPEN_HEAD + sizeof names];
    for (int i = 0; i < 4; i++) { /* a NUL may be in the generation alone */
        memcpy(body + WIRE_OPEN_HEAD, names, sizeof names);
        wire_write_open(body, 0, token, 3, 3, 3);
        body[WIRE_OPEN_HEAD + 3 * i - (i == 3 ? 9 : 0) + 1] = i == 3 ? 'a' : 0;
        CHECK(wire_parse_open(body, sizeof body, &open) == (i == 1 || i == 3));
    }
}

/* --- Server and pushers ------------------------------------------------------------------------------------------ */

typedef struct {
    int listener;
    bodhi_server *server;
    pthread_t thread;
} served;

static void *run(void *argument) {
    served *s = argument;
    CHECK(bodhi_server_run(s->server) >= 0);
    return NULL;
}

static served start(const char *name) {
    char path[128];
    char store[128];
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    served s = {.listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)};
    (void)snprintf(path, sizeof path, "%s/%s.socket", root, name);
    (void)snprintf(store, sizeof store, "%s/%s", root, name);
    (void)snprintf(address.sun_path, sizeof address.sun_path, "%.107s", path);
    (void)unlink(path);
    CHECK(bind(s.listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(s.listener, 16) == 0);
    bodhi_serve_options options = {.listener = s.listener, .batch_ms = 50};
    CHECK(bodhi_server_open(store, &options, &s.server) == BODHI_OK);
    return s;
}

static void stop(served *s) {
    CHECK(write(bodhi_server_wake(s->server), "x", 1) == 1);
    CHECK(pthread_join(s->thread, NULL) == 0);
    bodhi_server_close(s->server);
    (void)close(s->listener);
}

enum { FRAMES = 400, ATOMS = 500, PUSHERS = 3 };

static void *push_frames(void *argument) {
    char addresses[2][128];
    const char *servers[2] = {addresses[0], addresses[1]};
    int64_t first = *(const int *)argument * (int64_t)FRAMES;
    static float positions[ATOMS * 3];
    bodhi_push_options options = {.durable = (int32_t)(first > 0), .timeout_ms = 20000, .batch_bytes = 30000};
    bodhi_pusher *pusher;
    (void)snprintf(addresses[0], sizeof addresses[0], "%s/a.socket", root);
    (void)snprintf(addresses[1], sizeof addresses[1], "%s/b.socket", root);
    CHECK(bodhi_push_open(servers, 2, "run", NULL, 0, &options, &pusher) == BODHI_OK);
    for (int64_t i = 0; i < FRAMES; i++) {
        bodhi_frame frame = {.number = first + i, .n_atoms = ATOMS, .positions = positions};
        CHECK(bodhi_push(pusher, &frame) == BODHI_OK);
    }
    bodhi_frame beyond = {.number = BODHI_MAX_NUMBER + 1, .n_atoms = ATOMS, .positions = positions};
    CHECK(bodhi_push(pusher, &beyond) == BODHI_ERROR_ARGUMENT);
    CHECK(bodhi_push_close(pusher) == BODHI_OK);
    return NULL;
}

static int64_t natives(const char *name) {
    char store_path[128];
    bodhi_store *store;
    bodhi_dataset *dataset;
    bodhi_facts facts;
    (void)snprintf(store_path, sizeof store_path, "%s/%s", root, name);
    CHECK(bodhi_open(store_path, 0, &store) == BODHI_OK);
    CHECK(bodhi_dataset_open(store, "run", NULL, 0, 0, &dataset) == BODHI_OK);
    CHECK(bodhi_dataset_query(dataset, &facts) == BODHI_OK);
    bodhi_dataset_close(dataset);
    bodhi_close(store);
    return facts.native;
}

static void test_pushing(void) {
    served a = start("a");
    served b = start("b");
    pthread_t pushers[PUSHERS];
    int numbers[PUSHERS];
    CHECK(pthread_create(&a.thread, NULL, run, &a) == 0 && pthread_create(&b.thread, NULL, run, &b) == 0);
    for (int i = 0; i < PUSHERS; i++) {
        numbers[i] = i;
        CHECK(pthread_create(&pushers[i], NULL, push_frames, &numbers[i]) == 0);
    }
    (void)usleep(50000);
    stop(&a); /* ends cleanly, so that what it has is known, and comes back */
    a = start("a");
    CHECK(pthread_create(&a.thread, NULL, run, &a) == 0);
    for (int i = 0; i < PUSHERS; i++) {
        CHECK(pthread_join(pushers[i], NULL) == 0);
    }
    stop(&a);
    stop(&b);
    CHECK(natives("a") + natives("b") >= (int64_t)PUSHERS * FRAMES);
}

/* --- Disks that hang or fail ------------------------------------------------------------------------------------- */

static atomic_bool sync_hangs;
static atomic_bool sync_fails; /* the next one */
static atomic_int n_syncs;
static ino_t failed_inode;

static int faulty_fdatasync(int fd) {
    struct stat status;
    (void)atomic_fetch_add(&n_syncs, 1);
    while (atomic_load(&sync_hangs)) {
        (void)usleep(1000);
    }
    CHECK(fstat(fd, &status) == 0);
    CHECK(failed_inode == 0 || status.st_ino != failed_inode); /* never tried again */
    if (atomic_exchange(&sync_fails, false)) {
        failed_inode = status.st_ino;
        errno = EIO;
        return -1;
    }
    return fdatasync(fd);
}

static bodhi_pusher *pusher_to(const char *name, int32_t timeout_ms) {
    char address[128];
    const char *servers[1] = {address};
    bodhi_push_options options = {.durable = 1, .timeout_ms = timeout_ms, .batch_bytes = 30000};
    bodhi_pusher *pusher;
    (void)snprintf(address, sizeof address, "%s/%s.socket", root, name);
    CHECK(bodhi_push_open(servers, 1, "run", NULL, 0, &options, &pusher) == BODHI_OK);
    return pusher;
}

static void push_one(bodhi_pusher *pusher, int64_t number) {
    float positions[ATOMS * 3] = {(float)number};
    bodhi_frame frame = {.number = number, .n_atoms = ATOMS, .positions = positions};
    CHECK(bodhi_push(pusher, &frame) == BODHI_OK);
}

static atomic_bool has_flushed;

static void *flush_pusher(void *pusher) {
    CHECK(bodhi_push_flush(pusher) == BODHI_OK);
    atomic_store(&has_flushed, true);
    return NULL;
}

static void ask(wire_link *link, enum wire_verb verb, size_t size, enum wire_verb expected) {
    unsigned char numbers[24] = {0, [8] = 1, [16] = 1}; /* of READ: frames 0 and 1; of MARK: frame 0 */
    wire_part part = {numbers, size};
    CHECK(link_ask(link, verb, &part, 1, expected, now_ms() + 5000) == BODHI_OK);
}

static int64_t acknowledged(const bodhi_pusher *pusher) {
    bodhi_push_facts facts;
    bodhi_push_query(pusher, &facts);
    return facts.acknowledged;
}

/* While a flush hangs, readers are answered, and newcomers, and nothing is acknowledged. */
static void test_a_flush_that_hangs(void) {
    static const uint8_t no_token[WIRE_TOKEN];
    char address[128];
    wire_link readers[2] = {0};
    pthread_t flushing;
    served s = start("hung");
    CHECK(pthread_create(&s.thread, NULL, run, &s) == 0);
    bodhi_pusher *pusher = pusher_to("hung", 20000);
    push_one(pusher, 0);
    CHECK(bodhi_push_flush(pusher) == BODHI_OK);
    (void)snprintf(address, sizeof address, "%s/hung.socket", root);
    atomic_store(&sync_hangs, true);
    int before = atomic_load(&n_syncs);
    push_one(pusher, 1);
    CHECK(pthread_create(&flushing, NULL, flush_pusher, pusher) == 0);
    while (atomic_load(&n_syncs) == before) {
        CHECK(!atomic_load(&has_flushed));
        (void)usleep(1000);
    }
    for (int i = 0; i < 2; i++) {
        CHECK(link_dial(&readers[i], address, geteuid(), NULL, 0, now_ms() + 5000) == BODHI_OK);
        CHECK(link_open(&readers[i], 0, no_token, "run", NULL, 0, "", now_ms() + 5000) == BODHI_OK);
        CHECK(get64(readers[i].in.body) == 1); /* native frame */
        ask(&readers[i], WIRE_READ, 16, WIRE_PLACES);
        CHECK(readers[i].n_descriptors == 1);
        ask(&readers[i], WIRE_MARK, 24, WIRE_MARKED);
        CHECK(get64(readers[i].in.body) == UINT64_MAX && get64(readers[i].in.body + 16) == 1);
        ask(&readers[i], WIRE_STATUS, 0, WIRE_COUNTERS);
        link_close(&readers[i]);
    }
    atomic_store(&sync_hangs, false);
    CHECK(pthread_join(flushing, NULL) == 0);
    CHECK(acknowledged(pusher) == 2);
    CHECK(bodhi_push_close(pusher) == BODHI_OK);
    stop(&s);
    CHECK(natives("hung") == 2);
}

/* A failed fsync is not tried again: its frames are refused, and kept when they come again, elsewhere. */
static void test_a_flush_that_fails(void) {
    served s = start("failing");
    CHECK(pthread_create(&s.thread, NULL, run, &s) == 0);
    bodhi_pusher *pusher = pusher_to("failing", 20000);
    push_one(pusher, 0);
    CHECK(bodhi_push_flush(pusher) == BODHI_OK);
    atomic_store(&sync_fails, true);
    for (int64_t number = 1; number < 5; number++) {
        push_one(pusher, number);
    }
    CHECK(bodhi_push_flush(pusher) == BODHI_OK);
    bodhi_push_facts facts;
    bodhi_push_query(pusher, &facts);
    CHECK(failed_inode != 0 && facts.acknowledged == 5 && facts.given_again > 0);
    CHECK(bodhi_push_close(pusher) == BODHI_OK);
    stop(&s);
    failed_inode = 0;
    CHECK(natives("failing") == 5);
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
    served s = start("busy");
    CHECK(pthread_create(&s.thread, NULL, run, &s) == 0);
    for (int turn = 0; turn < 3; turn++) {
        bodhi_pusher *pusher = pusher_to("busy", 10000);
        for (int64_t number = 0; number < 3; number++) {
            push_one(pusher, number);
        }
        CHECK(bodhi_push_flush(pusher) == BODHI_OK);
        CHECK(bodhi_push_close(pusher) == BODHI_OK);
        atomic_store(&open_errors, turn == 0 ? 4 : 0); /* opening the dataset, and each frame */
    }
    CHECK(atomic_load(&open_errors) == 0);
    stop(&s);
    CHECK(natives("busy") == 3);
}

int main(void) {
    CHECK(make_scratch(root, sizeof root, "/tmp"));
    test_parser();
    test_names();
    test_pushing();
    bodhi_io.fdatasync = faulty_fdatasync;
    test_a_flush_that_hangs();
    test_a_flush_that_fails();
    real_openat = bodhi_io.openat;
    bodhi_io.openat = faulty_openat;
    test_a_failed_open();
    remove_all(root);
    (void)puts("all passed");
    return 0;
}
