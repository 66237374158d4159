/* What clients make of a server: questions, reading, pushing, and whose frames a dataset has. */
#include "../store/syncs.h"
#include "base/io.h"
#include "base/threads.h"
#include "net/pusher.h"
#include "running.h"

enum { PART_BYTES = 128 << 10 /* of an attachment at once */ };

/* --- Questions ---------------------------------------------------------------------------------------------------- */

static void test_questions(void) {
    begin("what a server answers");
    static unsigned char attached[(1 << 20) + 5000];
    for (size_t i = 0; i < sizeof attached; i++) {
        attached[i] = (unsigned char)(i * 2654435761U >> 11);
    }
    write_frames("/run", "one", BODHI_ALIEN, 60, 64);
    write_frames("/run", "one", BODHI_NATIVE, 0, 40);
    write_frames("/run", "two", BODHI_NATIVE, 0, 3);
    write_frames("/ran", "six", BODHI_NATIVE, 0, 3);
    write_attachment("x-large", attached, sizeof attached);
    start((bodhi_serve_options){0});
    wire_link one = opened(0, "/run", "one");
    CHECK(get64(one.records) == 40 && get64(one.records + 8) == 4);
    wire_link two = opened(0, "/run", "two");
    CHECK(get64(two.records) == 3 && get64(two.records + 8) == 0);
    CHECK(question(&two, WIRE_SURVEY, NULL, 0, 0) == BODHI_OK && two.count == 3);
    size_t all = two.n_bytes;
    CHECK(question(&two, WIRE_SURVEY, "/run", 0, 0) == BODHI_OK && two.count == 2);
    size_t of_run = two.n_bytes;
    CHECK(question(&two, WIRE_SURVEY, "/ran", 0, 0) == BODHI_OK && two.n_bytes == all - of_run);
    CHECK(memcmp(two.records + WIRE_DATASET_HEAD + WIRE_DIRECTORY, "/ransix", 7) == 0);
    CHECK(question(&one, WIRE_RUNS, NULL, 30, 62) == BODHI_OK && one.count == 1);
    CHECK(get64(one.records) == 30 && get64(one.records + 8) == 1 && get64(one.records + 16) == 10);
    CHECK(question(&one, WIRE_RUNS, NULL, 40, UINT64_MAX) == BODHI_OK && one.count == 0);
    const wire_question aliens = {.first = 61, .last = UINT64_MAX, .kind = BODHI_ALIEN};
    CHECK(ask(&one, WIRE_RUNS, &aliens, sizeof aliens) == BODHI_OK && get64(one.records + 16) == 3);
    CHECK(question(&one, WIRE_FETCH, "large", 5000, 0) == BODHI_OK);
    CHECK(get64(one.records) == sizeof attached && one.n_bytes == 16 + PART_BYTES);
    CHECK(memcmp(one.records + 16, attached + 5000, PART_BYTES) == 0);
    send_frame(&one, 200); /* it did not say that it would push */
    CHECK(link_answer(&one, WIRE_FRAME, now_ms() + SOON_MS) == BODHI_ERROR_PROTOCOL);
    link_close(&one);
    static const char *const no_names[] = {"a/../../identity", "a/b", "", "\xff"};
    for (size_t i = 0; i < LENGTH(no_names); i++) {
        one = opened(0, "/run", "one");
        CHECK(question(&one, WIRE_FETCH, no_names[i], 0, 0) == BODHI_ERROR_ARGUMENT);
        link_close(&one);
    }
    link_close(&two);
    stop();
}

static ssize_t short_sendmsg(int fd, const struct msghdr *message, int flags) {
    struct msghdr some = *message;
    struct iovec part = *message->msg_iov;
    part.iov_len = part.iov_len < 7 ? part.iov_len : 7;
    some.msg_iov = &part;
    some.msg_iovlen = 1;
    return sendmsg(fd, &some, flags);
}

static void test_long_answer(void) {
    static const uint64_t numbers[100];
    begin("an answer that is sent in pieces");
    write_frames("/run", "one", BODHI_NATIVE, 0, 40);
    bodhi_calls real = bodhi_io;
    bodhi_io.sendmsg = short_sendmsg;
    start((bodhi_serve_options){0});
    wire_link link = opened(0, "/run", "one");
    CHECK(ask(&link, WIRE_READ, numbers, sizeof numbers) == BODHI_OK && link.count == LENGTH(numbers));
    CHECK(get64(link.records + sizeof(wire_place) * 99 + 16) > 0); /* its length */
    link_close(&link);
    stop();
    bodhi_io = real;
}

/* Frames in many segments, read by the descriptors that the server hands out; none of these stays open. */
static void test_reading(void) {
    begin("reading by a server");
    int64_t numbers[40];
    write_frames("/run", "one", BODHI_NATIVE, 0, 40);
    start((bodhi_serve_options){0});
    wire_link other = opened(0, "/run", "one");
    int before = count_descriptors();
    for (int round = 0; round < 3; round++) {
        served_dataset d;
        bodhi_reader *reader;
        bodhi_frame frame;
        open_served(&d, "/run", "one");
        for (int64_t i = 0; i < 40; i++) {
            numbers[i] = i * 7 % 40;
        }
        CHECK(served_reader_open(&d, numbers, 40, NULL, &reader) == BODHI_OK);
        for (int64_t i = 0; i < 40; i++) {
            CHECK(bodhi_reader_next(reader, &frame) == BODHI_OK && frame.number == numbers[i]);
            CHECK(frame.positions[17] == value_of(frame.number, 17));
        }
        bodhi_reader_close(reader);
        served_close(&d);
        for (int64_t until = now_ms() + SOON_MS; count_descriptors() > before && now_ms() < until;) {
            (void)usleep(1000); /* the server has yet to see that the connection is closed */
        }
        CHECK(count_descriptors() <= before);
    }
    link_close(&other);
    stop();
}

/* A dataset that the server has open is used by whoever opens it, too. */
static void test_use(void) {
    begin("use of a dataset that is open");
    const struct timespec long_ago[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    struct stat status;
    char path[200];
    write_frames("/run", "one", BODHI_NATIVE, 0, 1);
    start((bodhi_serve_options){0});
    wire_link one = opened(0, "/run", "one");
    bodhi_dataset *dataset = open_beside("/run", "one", 0);
    (void)snprintf(path, sizeof path, "%s/%s/meta", home, bodhi_dataset_directory(dataset));
    CHECK(utimensat(AT_FDCWD, path, long_ago, 0) == 0);
    wire_link two = opened(0, "/run", "one");
    CHECK(stat(path, &status) == 0 && status.st_mtim.tv_sec > 1000);
    close_beside(dataset);
    link_close(&one);
    link_close(&two);
    stop();
}

/* A reader that has read all gives its turn to others, before it is closed. */
static void test_turns_of_readers(void) {
    begin("turns of readers");
    int64_t numbers[40];
    unsigned char number[8] = {0};
    served_dataset d;
    bodhi_reader *reader;
    bodhi_frame frame;
    write_frames("/run", "one", BODHI_NATIVE, 0, 40);
    start((bodhi_serve_options){.serialize_reads = 1, .message_ms = 30000});
    wire_link other = opened(0, "/run", "one");
    open_served(&d, "/run", "one");
    for (int64_t i = 0; i < 40; i++) {
        numbers[i] = i;
    }
    CHECK(served_reader_open(&d, numbers, 40, NULL, &reader) == BODHI_OK);
    for (int64_t i = 0; i < 40; i++) {
        CHECK(bodhi_reader_next(reader, &frame) == BODHI_OK && frame.positions[17] == value_of(i, 17));
    }
    CHECK(ask(&other, WIRE_READ, number, 8) == BODHI_OK);
    bodhi_reader_close(reader);
    served_close(&d);
    link_close(&other);
    stop();
}

/* An answer to another question is none. */
static void *answer_wrongly(void *argument) {
    int fd = *(const int *)argument;
    const wire_answer head = {.verb = WIRE_RUNS, .count = 1};
    unsigned char message[WIRE_HEADER + sizeof head];
    CHECK(recv(fd, message, sizeof message, MSG_WAITALL) == (ssize_t)sizeof message);
    wire_header(message, WIRE_ANSWER, sizeof head);
    memcpy(message + WIRE_HEADER, &head, sizeof head);
    CHECK(send(fd, message, sizeof message, MSG_NOSIGNAL) == (ssize_t)sizeof message);
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
    CHECK(ask(&link, WIRE_READ, number, 8) == BODHI_ERROR_PROTOCOL);
    CHECK(pthread_join(one, NULL) == 0);
    link_close(&link);
    (void)close(ends[1]);
}

/* --- Pushing ------------------------------------------------------------------------------------------------------ */

static void test_acknowledgements(void) {
    begin("acknowledgements");
    char path[200];
    bodhi_calls real = bodhi_io;
    watch_syncs();
    start((bodhi_serve_options){.batch_ms = 100});
    wire_link one = opened(WIRE_PUSHES | WIRE_DURABLE, "/run", "one");
    wire_link two = opened(WIRE_PUSHES, "/run", "one");
    send_frame(&one, 1);
    send_frame(&one, 2);
    send_frame(&two, 3);
    take_acks(&one, 1, 2); /* unasked, and each its own */
    take_acks(&two, 3, 1);
    link_close(&one);
    link_close(&two);
    bodhi_dataset *dataset = open_beside("/run", "one", 0);
    bodhi_segment_facts facts = {.busy = 1};
    int64_t n = 0;
    for (int64_t until = now_ms() + SOON_MS; facts.busy && now_ms() < until; (void)usleep(10000)) {
        CHECK(bodhi_dataset_segments(dataset, &facts, 1, &n) == BODHI_OK && n == 1);
    }
    CHECK(!facts.busy); /* nobody pushes any more */
    (void)snprintf(path, sizeof path, "%s/%s/n-%016" PRIx64 ".seg", home, bodhi_dataset_directory(dataset), facts.id);
    CHECK(is_synced(path)); /* as one of the pushers wants, who were answered together */
    close_beside(dataset);
    stop();
    bodhi_io = real;
}

enum { LOST = 6 };

static void answer(int fd, uint16_t verb, uint16_t count, const void *records, size_t n_bytes) {
    const wire_answer head = {.verb = verb, .count = count};
    wire_output out = {0};
    wire_add(&out, &head, sizeof head);
    wire_add(&out, records, n_bytes);
    CHECK(wire_end(&out, WIRE_ANSWER) && send(fd, out.bytes, out.n, MSG_NOSIGNAL) == (ssize_t)out.n);
    wire_empty(&out);
}

/* Let a pusher in and take its frames, whose acknowledgements are in `acks` then. */
static int take_frames(int listener, wire_parser *parser, wire_ack acks[LOST]) {
    static const unsigned char opened_dataset[sizeof(wire_opened)];
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    CHECK(fd >= 0 && receive_message(fd, parser) && parser->verb == WIRE_OPEN);
    answer(fd, WIRE_OPEN, 1, opened_dataset, sizeof opened_dataset);
    for (int i = 0; i < LOST; i++) {
        CHECK(receive_message(fd, parser) && parser->verb == WIRE_FRAME);
        acks[i] = (wire_ack){.number = get64(parser->body)};
    }
    return fd;
}

/* A server that takes frames and dies with them. */
static void *take_and_die(void *argument) {
    wire_parser parser = {.requests = WIRE_SENDS};
    wire_ack acks[LOST];
    (void)close(take_frames(*(const int *)argument, &parser, acks));
    (void)close(*(const int *)argument);
    wire_free(&parser);
    return NULL;
}

static bool refuses;

/* A server that refuses all frames or acknowledges one out of turn, which ends the connection, and then takes what
 * comes over the next one. */
static void *take_twice(void *argument) {
    wire_parser first = {.requests = WIRE_SENDS};
    wire_parser second = {.requests = WIRE_SENDS};
    wire_ack acks[LOST];
    int fd = take_frames(*(const int *)argument, &first, acks);
    for (int i = 0; i < LOST; i++) {
        acks[i].status = refuses ? BODHI_ERROR_FULL : BODHI_OK;
    }
    answer(fd, WIRE_FRAME, refuses ? LOST : 1, refuses ? acks : &acks[1], (refuses ? LOST : 1) * sizeof *acks);
    while (receive_message(fd, &first)) { /* it may have asked for more of them */
    }
    (void)close(fd);
    fd = take_frames(*(const int *)argument, &second, acks);
    CHECK(receive_message(fd, &second) && second.verb == WIRE_FLUSH);
    answer(fd, WIRE_FRAME, LOST, acks, sizeof acks);
    CHECK(!receive_message(fd, &second)); /* the pusher is closed */
    (void)close(fd);
    (void)close(*(const int *)argument);
    wire_free(&first);
    wire_free(&second);
    return NULL;
}

/* Push frames, of which the server at `ends` takes some and dies. `moved`: by so much beside what others have. */
static bodhi_pusher *push_to_the_lost(int *ends, const char *const *servers, int n_servers, float moved,
                                      int timeout_ms) {
    float positions[ATOMS * 3];
    bodhi_push_options options = {.timeout_ms = timeout_ms};
    bodhi_pusher *pusher;
    pthread_t one;
    CHECK(pthread_create(&one, NULL, take_and_die, ends) == 0);
    CHECK(bodhi_push_open(servers, n_servers, "run", NULL, 0, &options, &pusher) == BODHI_OK);
    for (int64_t number = 0; number < (int64_t)LOST * n_servers; number++) {
        bodhi_frame frame = frame_of(number, positions);
        positions[0] += moved;
        CHECK(bodhi_push(pusher, &frame) == BODHI_OK);
    }
    CHECK(pthread_join(one, NULL) == 0);
    return pusher;
}

static void test_a_connection_that_breaks_off(bool by_refusing) {
    begin(by_refusing ? "a server that takes what it has refused" : "a connection that breaks off");
    refuses = by_refusing;
    const char *servers[1] = {socket_path};
    const bodhi_push_options options = {.timeout_ms = SOON_MS};
    float positions[ATOMS * 3];
    bodhi_push_facts facts;
    bodhi_pusher *pusher;
    pthread_t one;
    int ends = listen_at(socket_path, 0);
    CHECK(pthread_create(&one, NULL, take_twice, &ends) == 0);
    CHECK(bodhi_push_open(servers, 1, "run", NULL, 0, &options, &pusher) == BODHI_OK);
    for (int64_t number = 0; number < LOST; number++) {
        bodhi_frame frame = frame_of(number, positions);
        CHECK(bodhi_push(pusher, &frame) == BODHI_OK);
    }
    CHECK(bodhi_push_flush(pusher) == BODHI_OK);
    bodhi_push_query(pusher, &facts);
    CHECK(facts.acknowledged == LOST && facts.given_again == LOST);
    CHECK(bodhi_push_close(pusher) == BODHI_OK);
    CHECK(pthread_join(one, NULL) == 0);
}

/* A server numbers launches in its store. */
static void test_slices(void) {
    begin("slices by a server");
    const char *servers[1] = {socket_path};
    const bodhi_push_options options = {.timeout_ms = SOON_MS};
    static const char *const launches[] = {"first", "later", "first"};
    float positions[ATOMS * 3];
    const int64_t ids[] = {0, 1};
    start((bodhi_serve_options){0});
    for (int i = 0; i < 3; i++) {
        const bodhi_slice_options slices = {.n_atoms = ATOMS, .rank = i, .launch = launches[i]};
        bodhi_pusher *pusher;
        bodhi_frame slice = frame_of(0, positions);
        slice.n_atoms = 2;
        CHECK(bodhi_push_open_slices(servers, 1, "run", NULL, 0, &options, &slices, &pusher) == BODHI_OK);
        CHECK(bodhi_push_slice(pusher, &slice, ids) == BODHI_OK && bodhi_push_close(pusher) == BODHI_OK);
        char generation[128];
        (void)snprintf(generation, sizeof generation, "slices of rank %d, %d atoms, launch %010d, mark %016llx\n", i,
                       ATOMS, i == 1 ? 2 : 1, (unsigned long long)mark_of_name(launches[i]));
        close_beside(open_beside("run" BODHI_SLICES_SUFFIX, generation, 0));
    }
    stop();
}

static void test_no_server(void) {
    begin("a server that is lost, and no other");
    const char *servers[1] = {socket_path};
    int ends = listen_at(socket_path, 0);
    bodhi_pusher *pusher = push_to_the_lost(&ends, servers, 1, 0, SOON_MS / 3);
    CHECK(bodhi_push_flush(pusher) == BODHI_ERROR_UNREACHABLE && strstr(bodhi_message(), "none of 1 servers answers"));
    bodhi_push_abandon(pusher);
}

/* A frame that was sent when the server broke off is sent again; an alien of it there does not count. */
static void test_lost_server(void) {
    begin("a server that is lost with frames on their way");
    const char *servers[1] = {socket_path};
    bodhi_push_facts facts;
    int ends = listen_at(socket_path, 0);
    write_frames("run", "", BODHI_ALIEN, 0, 3);
    bodhi_pusher *pusher = push_to_the_lost(&ends, servers, 1, 0, SOON_MS);
    start((bodhi_serve_options){0});
    CHECK(bodhi_push_flush(pusher) == BODHI_OK);
    bodhi_push_query(pusher, &facts);
    CHECK(facts.acknowledged == LOST && facts.in_flight == 0 && facts.given_again == LOST);
    CHECK(bodhi_push_close(pusher) == BODHI_OK);
    wire_link link = opened(0, "run", "");
    CHECK(get64(link.records) == LOST);
    link_close(&link);
    stop();
}

/* What it had goes to another one. */
static void test_server_lost_for_good(void) {
    begin("a server that is lost for good");
    char lost[160];
    (void)snprintf(lost, sizeof lost, "%s-lost", socket_path);
    const char *servers[2] = {socket_path, lost};
    int ends = listen_at(lost, 0);
    start((bodhi_serve_options){0});
    bodhi_pusher *pusher = push_to_the_lost(&ends, servers, 2, 0, SOON_MS);
    CHECK(bodhi_push_flush(pusher) == BODHI_OK);
    CHECK(bodhi_push_close(pusher) == BODHI_OK);
    wire_link link = opened(0, "run", "");
    CHECK(get64(link.records) == (uint64_t)2 * LOST);
    link_close(&link);
    stop();
}

/* The store got other frames of these numbers meanwhile: the pusher is told. */
static void test_server_back_with_others(void) {
    begin("a server that comes back with other frames");
    const char *servers[1] = {socket_path};
    int ends = listen_at(socket_path, 0);
    bodhi_pusher *pusher = push_to_the_lost(&ends, servers, 1, 1, SOON_MS);
    write_frames("run", "", BODHI_NATIVE, 0, LOST);
    start((bodhi_serve_options){0});
    CHECK(bodhi_push_flush(pusher) == BODHI_ERROR_CONFLICT);
    bodhi_push_abandon(pusher);
    stop();
}

/* --- Authors ------------------------------------------------------------------------------------------------------ */

/* A client whose question the disk keeps from being answered is not silent, however long that takes. */
static void test_a_slow_disk(void) {
    enum { PATIENCE = 500 }; /* ms: a busy machine looks at its clients later than every 200 ms */
    bodhi_calls real = bodhi_io;
    begin("a client that waits for the disk");
    watch_syncs();
    start((bodhi_serve_options){.batch_ms = 1, .idle_ms = PATIENCE, .message_ms = PATIENCE});
    wire_link link = opened(WIRE_PUSHES | WIRE_DURABLE, "/run", "one");
    atomic_store(&syncs_held, true);
    send_frame(&link, 0);
    CHECK(link_send_message(&link, WIRE_FLUSH, NULL, 0, now_ms() + SOON_MS) == BODHI_OK);
    (void)usleep(4 * PATIENCE * 1000);
    atomic_store(&syncs_held, false);
    take_acks(&link, 0, 1);
    link_close(&link);
    stop();
    bodhi_io = real;
}

static int push_as(const char *name, const char *identity) {
    wire_link link = dialled();
    int status = open_as(&link, WIRE_PUSHES, name, "one", identity);
    link_close(&link);
    return status;
}

/* Frames of one simulation, or of a trajectory, get none of another one; without frames a dataset is anybody's. */
static void test_authors(void) {
    begin("whose frames a dataset has");
    write_frames("/run", "one", BODHI_NATIVE, 0, 3);
    start((bodhi_serve_options){0});
    CHECK(push_as("/run", "this") == BODHI_OK);
    CHECK(push_as("/run", "another") == BODHI_ERROR_CONFLICT);
    CHECK(push_as("/run", "this") == BODHI_OK && push_as("/run", "") == BODHI_OK);
    CHECK(push_as("/new", "this") == BODHI_OK);
    int status = BODHI_ERROR_CONFLICT;
    for (int64_t until = now_ms() + SOON_MS; status == BODHI_ERROR_CONFLICT && now_ms() < until; (void)usleep(1000)) {
        status = push_as("/new", "another"); /* until the server has seen that the first one is gone */
    }
    CHECK(status == BODHI_OK);
    stop();
    write_attachment("x-origin.json", (const unsigned char *)"{}", 2);
    start((bodhi_serve_options){0});
    CHECK(push_as("/run", "this") == BODHI_ERROR_CONFLICT);
    CHECK(push_as("/run" BODHI_SLICES_SUFFIX, "this") == BODHI_ERROR_CONFLICT);
    stop();
}

int main(void) {
    make_root();
    test_wrong_answers();
    test_questions();
    test_long_answer();
    test_reading();
    test_use();
    test_turns_of_readers();
    test_acknowledgements();
    test_lost_server();
    test_server_lost_for_good();
    test_server_back_with_others();
    test_a_slow_disk();
    test_authors();
    test_a_connection_that_breaks_off(false);
    test_a_connection_that_breaks_off(true);
    test_slices();
    test_no_server(); /* last: its pusher may still be dialling */
    remove_root();
    return 0;
}
