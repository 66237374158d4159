/* A store that many threads use, and one of which the Nth system call fails, for every N; for sanitizers. */
#include "../faults.h"
#include "../scratch.h"
#include "sample.h"
#include "write/writer.h"

enum { N = 12, LARGE = 15000 };
static const uint64_t all_written = (UINT64_C(1) << N) - 1;

/* Read all frames, `by_atoms` as if they were some. False if a reader could not be had. */
static bool read_frames(int direct, bool by_atoms, uint64_t *there) {
    const bodhi_range all[] = {{0, 1}, {1, INT64_MAX}};
    bodhi_read_options options = {.direct = direct, .request_bytes = 100000, .ring = 2};
    if (by_atoms) {
        options.atoms = all;
        options.n_ranges = 2;
    }
    return try_to_read_all(&options, there);
}

/* Append and flush; a bit is set for each frame that was acknowledged. */
static void write_some(int first, int last, uint64_t *acknowledged) {
    bodhi_writer *writer;
    bodhi_write_options options = {.segment_bytes = 1 << 20,
                                   .block_atoms = 1000,
                                   .encoding = first == 0 ? BODHI_ENCODING_RAW : BODHI_ENCODING_AUTO};
    if (bodhi_writer_open(run, BODHI_ALIEN, &options, &writer) != BODHI_OK) {
        return;
    }
    uint64_t pending = 0;
    for (int64_t number = first; number < last; number++) {
        /* Written through where they are raw, or gathered. */
        int status = append(writer, number, number % 4 == 3 ? LARGE : 7);
        CHECK(status <= 0 || status == BODHI_EXISTS);
        pending |= status == BODHI_OK ? UINT64_C(1) << number : 0;
        pending = status < 0 ? 0 : pending; /* what was not flushed may be undone */
        if (number % 5 == 4 || number == last - 1) {
            *acknowledged |= bodhi_flush(writer, 1) == BODHI_OK ? pending : 0;
            pending = 0;
            /* What was granted is in files, or can still be appended. */
            CHECK(writer->poisoned || writer->room.outstanding == writer->room.left);
        }
    }
    int closed = bodhi_writer_close(writer);
    CHECK(closed <= 0);
}

/* The life of a store; whatever fails, it ends. Returns whether nothing failed. */
static bool live(bool by_atoms, uint64_t *acknowledged) {
    if (bodhi_open(home, BODHI_CREATE, &store) != BODHI_OK) {
        return false;
    }
    bodhi_store_set_quota(store, 1 << 30);
    bool fine = bodhi_dataset_open(store, "/run", "g", 1, BODHI_CREATE, &run) == BODHI_OK;
    if (fine) {
        uint64_t there;
        write_some(0, N / 2, acknowledged);
        write_some(N / 2, N, acknowledged);
        CHECK(bodhi_dataset_seal(run, 1) == BODHI_OK); /* whether there are tables then or not */
        fine = read_frames(BODHI_DIRECT_ON, by_atoms, &there) && bodhi_dataset_refresh(run) == BODHI_OK &&
               there == all_written;
        bodhi_dataset_close(run);
    }
    bodhi_close(store);
    return fine;
}

static void check_afterwards(bool by_atoms, uint64_t acknowledged) {
    uint64_t there;
    open_all();
    CHECK(read_frames(BODHI_DIRECT_OFF, by_atoms, &there) && (acknowledged & ~there) == 0);
    write_some(0, N, &acknowledged); /* it can be used on */
    CHECK(read_frames(BODHI_DIRECT_OFF, by_atoms, &there) && there == all_written);
    close_all();
}

/* The Nth call fails, for every N. */
static void test_every_call_failing(void) {
    install_faults();
    for (int kind = INTERRUPTED; kind < N_FAULTS; kind++) {
        bool is_harmless = kind == INTERRUPTED || kind == CUT_SHORT;
        for (int stays = 0; stays < (is_harmless ? 1 : 2); stays++) {
            long n = 0;
            long calls;
            do {
                uint64_t acknowledged = 0;
                bool by_atoms = ++n % 2 == 1;
                remove_all(home);
                DOING("%s, call %ld", fault_names[kind], n);
                begin_fault((enum fault)kind, n, stays != 0);
                bool fine = live(by_atoms, &acknowledged);
                CHECK(fine || !is_harmless);
                calls = end_fault();
                check_afterwards(by_atoms, acknowledged);
            } while (calls >= n);
            (void)printf("%s%s: %ld calls\n", fault_names[kind], stays ? " and after" : "", n - 1);
        }
    }
    remove_faults();
}

static void *read_often(void *argument) {
    for (int i = 0; i < 40; i++) {
        uint64_t words[2] = {0};
        uint64_t there;
        CHECK(bodhi_dataset_mark(run, 0, 1, FRAMES, words, words + 1) == BODHI_OK);
        CHECK(read_frames(i % 3, false, &there));
        CHECK(bodhi_dataset_refresh(run) == BODHI_OK);
    }
    return argument;
}

static void *write_often(void *argument) {
    uint64_t acknowledged = 0;
    for (int64_t i = 0; i < 10; i++) {
        int64_t dropped;
        bodhi_facts facts;
        write_some(0, N, &acknowledged);
        CHECK(bodhi_dataset_drop(run, BODHI_ALIEN, &i, 1, &dropped) == BODHI_OK);
        CHECK(bodhi_dataset_query(run, &facts) == BODHI_OK);
    }
    return argument;
}

static void test_threads(void) {
    pthread_t threads[4];
    begin_empty("threads that read and write");
    bodhi_store_set_quota(store, 1 << 30);
    for (int i = 0; i < 4; i++) {
        CHECK(pthread_create(&threads[i], NULL, i % 2 ? read_often : write_often, NULL) == 0);
    }
    for (int i = 0; i < 4; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
    }
    close_all();
}

int main(void) {
    make_home();
    test_threads();
    test_every_call_failing();
    remove_home();
    return 0;
}
