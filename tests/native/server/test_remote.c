/* Reading from a server as another machine does: bytes come over the connection. What is read beside it, from the store
 * itself, is what must come. */
#include "running.h"

enum { MANY = 20000, N_FRAMES = 40, EDGE = 5 };

static bodhi_dataset *beside;
static int64_t numbers[N_FRAMES];

/* Positions on a grid, which are kept packed; blocks of later frames lie elsewhere. */
static float position_of(int64_t number, int64_t i) {
    int64_t bits = (number * 77773 + i * 2654435761) >> 7;
    int64_t most = i < MANY / 2 ? 90000 >> (number / 4) : 9000;
    return (float)(bits % (most + 1)) / 100.0F;
}

static void write_many(void) {
    static float positions[MANY * 3];
    bodhi_writer *writer;
    bodhi_write_options options = {.segment_bytes = 2 << 20};
    beside = open_beside("/run", "one", BODHI_CREATE);
    CHECK(bodhi_writer_open(beside, BODHI_NATIVE, &options, &writer) == BODHI_OK);
    for (int64_t number = 0; number < N_FRAMES; number++) {
        numbers[number] = number;
        for (int64_t i = 0; i < (int64_t)MANY * 3; i++) {
            positions[i] = position_of(number, i);
        }
        bodhi_frame frame = {.number = number, .time = (double)number, .n_atoms = MANY, .positions = positions};
        CHECK(bodhi_append(writer, &frame) == BODHI_OK);
    }
    CHECK(bodhi_writer_close(writer) == BODHI_OK);
    close_beside(beside);
    beside = open_beside("/run", "one", 0);
}

static void open_remote(served_dataset *d) {
    *d = (served_dataset){.link = {.fd = -1}, .timeout_ms = SOON_MS * 5L, .remote = true};
    CHECK(pthread_mutex_init(&d->talking, NULL) == 0);
    CHECK(dial_as_stranger(&d->link) == BODHI_OK && served_open(d, "/run", "one", 3) == BODHI_OK);
}

static void close_remote(served_dataset *d) {
    served_close(d);
    (void)pthread_mutex_destroy(&d->talking);
}

static bool same_atoms(const float *one, const float *other, const bodhi_range *range) {
    size_t first = (size_t)range->first * 3;
    return memcmp(one + first, other + first, (size_t)(range->last - range->first) * 3 * sizeof *one) == 0;
}

/* The next frame of two readers is one and the same. */
static void check_next(bodhi_reader *remote, bodhi_reader *here, const bodhi_read_options *options) {
    static const bodhi_range all = {0, MANY};
    bodhi_frame got;
    bodhi_frame known;
    CHECK(bodhi_reader_next(here, &known) == BODHI_OK && bodhi_reader_next(remote, &got) == BODHI_OK);
    CHECK(got.number == known.number && got.n_atoms == MANY && got.kind == known.kind);
    if (options->check_only != 0) {
        CHECK(got.positions == NULL && known.positions == NULL);
        return;
    }
    for (int64_t i = 0; i < options->n_ranges; i++) {
        CHECK(same_atoms(got.positions, known.positions, &options->atoms[i]));
    }
    CHECK(options->n_ranges > 0 || same_atoms(got.positions, known.positions, &all));
}

static void read_both(served_dataset *d, const bodhi_read_options *options, int64_t n) {
    bodhi_reader *remote;
    bodhi_reader *here;
    CHECK(served_reader_open(d, numbers, N_FRAMES, options, &remote) == BODHI_OK);
    CHECK(bodhi_reader_open(beside, numbers, N_FRAMES, options, &here) == BODHI_OK);
    for (int64_t i = 0; i < n; i++) {
        check_next(remote, here, options);
    }
    CHECK(n < N_FRAMES || bodhi_reader_bytes(remote) > 0);
    bodhi_reader_close(remote); /* while its threads read on */
    bodhi_reader_close(here);
}

static void test_reading(void) {
    static const bodhi_range some[] = {{9000, 9400}, {15000, 18000}};
    served_dataset d;
    DOING("reading");
    open_remote(&d);
    for (int64_t request = 0; request <= 100000; request += 100000) {
        for (int32_t check_only = 0; check_only < 2; check_only++) {
            for (int32_t no_thread = 0; no_thread < 2; no_thread++) {
                bodhi_read_options options = {
                    .request_bytes = request, .no_thread = no_thread, .check_only = check_only};
                read_both(&d, &options, N_FRAMES);
                read_both(&d, &options, EDGE);
                options.atoms = some;
                options.n_ranges = 2;
                read_both(&d, &options, N_FRAMES);
                options.ring = 1; /* a reader of fewer windows has the memory of the one before */
                read_both(&d, &options, N_FRAMES);
            }
        }
    }
    close_remote(&d);
}

/* Two readers over one connection, whose threads bring their bytes in turn. */
static void test_two_at_once(void) {
    served_dataset d;
    bodhi_reader *one;
    bodhi_reader *other;
    bodhi_reader *here[2];
    bodhi_read_options options = {.request_bytes = 50000};
    DOING("two readers");
    open_remote(&d);
    CHECK(served_reader_open(&d, numbers, N_FRAMES, &options, &one) == BODHI_OK);
    CHECK(served_reader_open(&d, numbers, N_FRAMES, &options, &other) == BODHI_OK);
    for (int i = 0; i < 2; i++) {
        CHECK(bodhi_reader_open(beside, numbers, N_FRAMES, &options, &here[i]) == BODHI_OK);
    }
    for (int64_t i = 0; i < N_FRAMES; i++) {
        check_next(one, here[0], &options);
        check_next(other, here[1], &options);
    }
    bodhi_reader_close(one);
    bodhi_reader_close(other);
    bodhi_reader_close(here[0]);
    bodhi_reader_close(here[1]);
    close_remote(&d);
}

static int64_t count_misses(served_dataset *d, const bodhi_read_options *options) {
    bodhi_reader *reader;
    bodhi_frame frame;
    int64_t misses = 0;
    CHECK(served_reader_open(d, numbers, N_FRAMES, options, &reader) == BODHI_OK);
    for (int64_t i = 0; i < N_FRAMES; i++) {
        int status = bodhi_reader_next(reader, &frame);
        CHECK(status == BODHI_OK || (status == BODHI_MISS && frame.reason == BODHI_REASON_DAMAGED));
        misses += status == BODHI_MISS;
    }
    bodhi_reader_close(reader);
    return misses;
}

/* Bytes that are wrong on the server's disk are found here, by whoever takes the checksums. */
static void test_damage(void) {
    enum { WRONG = 64 };
    served_dataset d;
    unsigned char right[WRONG];
    unsigned char wrong[WRONG];
    char path[300];
    bodhi_place at;
    DOING("damage");
    CHECK(bodhi_dataset_locate(beside, &numbers[7], 1, &at) == BODHI_OK && at.found != 0);
    (void)snprintf(path, sizeof path, "%s/%s/n-%016llx.seg", home, bodhi_dataset_directory(beside),
                   (unsigned long long)at.segment);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    off_t middle = (off_t)(at.offset + at.length / 2);
    CHECK(fd >= 0 && pread(fd, right, WRONG, middle) == WRONG);
    for (int i = 0; i < WRONG; i++) {
        wrong[i] = (unsigned char)~right[i];
    }
    CHECK(pwrite(fd, wrong, WRONG, middle) == WRONG);
    open_remote(&d);
    for (int32_t how = 0; how < 4; how++) {
        bodhi_read_options options = {.check_only = how & 1, .no_thread = how >> 1};
        CHECK(count_misses(&d, &options) == 1);
    }
    close_remote(&d);
    CHECK(pwrite(fd, right, WRONG, middle) == WRONG && close(fd) == 0);
}

/* What has come is read, the rest is told to be out of reach. */
static void test_a_lost_server(void) {
    served_dataset d;
    bodhi_reader *reader;
    bodhi_frame frame;
    bodhi_read_options options = {.request_bytes = 50000};
    DOING("a server that ends");
    open_remote(&d);
    CHECK(served_reader_open(&d, numbers, N_FRAMES, &options, &reader) == BODHI_OK);
    CHECK(bodhi_reader_next(reader, &frame) == BODHI_OK);
    stop();
    int64_t misses = 0;
    for (int64_t i = 1; i < N_FRAMES; i++) {
        int status = bodhi_reader_next(reader, &frame);
        CHECK(status == BODHI_OK || (status == BODHI_MISS && frame.reason == BODHI_REASON_UNREACHABLE));
        misses += status == BODHI_MISS;
    }
    CHECK(misses > N_FRAMES / 2 && bodhi_reader_next(reader, &frame) == BODHI_END);
    bodhi_reader_close(reader);
    close_remote(&d);
}

int main(void) {
    make_root();
    begin("writing");
    write_many();
    start((bodhi_serve_options){0});
    test_reading();
    test_two_at_once();
    test_damage();
    test_a_lost_server();
    close_beside(beside);
    remove_root();
    puts("all passed");
    return 0;
}
