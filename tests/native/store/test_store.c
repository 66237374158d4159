/* A store that many threads use, and one of which the Nth system call fails, for every N; for sanitizers. */
#include "../check.h"
#include "../faults.h"
#include "../scratch.h"
#include "write/writer.h"

char doing[256];

static char scratch[256];
static char home[300];

static void clear(void) {
    remove_all(home);
}

enum { FRAMES = 12, SMALL = 7, LARGE = 30000 };

static int64_t atoms_of(int64_t number) {
    return number % 4 == 3 ? LARGE : SMALL; /* written through where they are raw, or gathered */
}

static float vectors[FRAMES][3 * LARGE]; /* of each frame */

static void make_vectors(void) {
    for (int number = 0; number < FRAMES; number++) {
        for (int i = 0; i < 3 * LARGE; i++) {
            vectors[number][i] = (float)(number * 1000 + i % 997);
        }
    }
}

static int append(bodhi_writer *writer, int64_t number) {
    float *values = vectors[number];
    float box[6] = {1, 2, 3, 90, 90, 90};
    bodhi_frame frame = {.number = number,
                         .time = (double)number,
                         .n_atoms = atoms_of(number),
                         .positions = values,
                         .velocities = number % 2 == 0 ? values : NULL,
                         .box = number % 3 == 0 ? box : NULL};
    return bodhi_append(writer, &frame);
}

static void check_frame(const bodhi_frame *frame) {
    CHECK(frame->time == (double)frame->number);
    CHECK(frame->n_atoms == atoms_of(frame->number));
    CHECK((frame->velocities != NULL) == (frame->number % 2 == 0));
    CHECK((frame->box != NULL) == (frame->number % 3 == 0));
    size_t bytes = (size_t)frame->n_atoms * 12;
    CHECK(memcmp(frame->positions, vectors[frame->number], bytes) == 0);
    CHECK(frame->velocities == NULL || memcmp(frame->velocities, vectors[frame->number], bytes) == 0);
}

/* Read all frames, `by_atoms` as if they were some; read[number] says which were there. False if a reader could not be
 * had. */
static bool read_all(bodhi_dataset *dataset, int direct, bool by_atoms, bool *read) {
    int64_t numbers[FRAMES];
    for (int i = 0; i < FRAMES; i++) {
        numbers[i] = (i * 5 + 3) % FRAMES;
    }
    memset(read, 0, FRAMES * sizeof *read);
    bodhi_reader *reader;
    bodhi_range all[] = {{0, 1}, {1, INT64_MAX}};
    bodhi_read_options options = {.direct = direct, .request_bytes = 100000, .ring = 2};
    if (by_atoms) {
        options.atoms = all;
        options.n_ranges = 2;
    }
    if (bodhi_reader_open(dataset, numbers, FRAMES, &options, &reader) != BODHI_OK) {
        return false;
    }
    bodhi_frame frame;
    int status;
    for (int i = 0; (status = bodhi_reader_next(reader, &frame)) != BODHI_END; i++) {
        CHECK(i < FRAMES && frame.number == numbers[i]);
        CHECK(status == BODHI_OK || (status == BODHI_MISS && frame.reason != 0));
        if (status == BODHI_OK) {
            check_frame(&frame);
            read[frame.number] = true;
        }
    }
    bodhi_reader_close(reader);
    return true;
}

/* Append and flush; acknowledged[number] is set for what was acknowledged. */
static void write_some(bodhi_dataset *dataset, int first, int last, bool *acknowledged) {
    bodhi_writer *writer;
    bodhi_write_options options = {.segment_bytes = 1 << 20,
                                   .block_atoms = 1000,
                                   .encoding = first == 0 ? BODHI_ENCODING_RAW : BODHI_ENCODING_AUTO};
    if (bodhi_writer_open(dataset, BODHI_ALIEN, &options, &writer) != BODHI_OK) {
        return;
    }
    bool pending[FRAMES] = {false};
    for (int64_t number = first; number < last; number++) {
        int status = append(writer, number);
        CHECK(status <= 0 || status == BODHI_EXISTS);
        pending[number] = status == BODHI_OK;
        if (status < 0) {
            memset(pending, 0, sizeof pending); /* what was not flushed may be undone */
        }
        if (number % 5 == 4 || number == last - 1) {
            if (bodhi_flush(writer, 1) == BODHI_OK) {
                for (int i = 0; i < FRAMES; i++) {
                    acknowledged[i] = acknowledged[i] || pending[i];
                }
            }
            memset(pending, 0, sizeof pending);
            /* What was granted is in files, or can still be appended. */
            CHECK(writer->poisoned || writer->room.outstanding == writer->room.left);
        }
    }
    int closed = bodhi_writer_close(writer);
    CHECK(closed <= 0);
}

/* The life of a store; whatever fails, it ends. Returns whether nothing failed. */
static bool live(bool by_atoms, bool *acknowledged) {
    bodhi_store *store;
    bodhi_dataset *dataset;
    if (bodhi_open(home, BODHI_CREATE, &store) != BODHI_OK) {
        return false;
    }
    bodhi_store_set_quota(store, 1 << 30);
    bool fine = bodhi_dataset_open(store, "/sim1", "g", 1, BODHI_CREATE, &dataset) == BODHI_OK;
    if (fine) {
        bool read[FRAMES];
        write_some(dataset, 0, FRAMES / 2, acknowledged);
        write_some(dataset, FRAMES / 2, FRAMES, acknowledged);
        CHECK(bodhi_dataset_seal(dataset, 1) == BODHI_OK); /* whether there are tables then or not */
        fine = read_all(dataset, BODHI_DIRECT_ON, by_atoms, read) && bodhi_dataset_refresh(dataset) == BODHI_OK;
        for (int i = 0; i < FRAMES; i++) {
            fine = fine && read[i];
        }
        bodhi_dataset_close(dataset);
    }
    bodhi_close(store);
    return fine;
}

static void check_afterwards(bool by_atoms, const bool *acknowledged) {
    bodhi_store *store;
    bodhi_dataset *dataset;
    bool read[FRAMES];
    CHECK(bodhi_open(home, BODHI_CREATE, &store) == BODHI_OK);
    CHECK(bodhi_dataset_open(store, "/sim1", "g", 1, BODHI_CREATE, &dataset) == BODHI_OK);
    CHECK(read_all(dataset, BODHI_DIRECT_OFF, by_atoms, read));
    for (int i = 0; i < FRAMES; i++) {
        CHECK(read[i] || !acknowledged[i]);
    }
    bool all[FRAMES] = {false};
    write_some(dataset, 0, FRAMES, all); /* it can be used on */
    CHECK(read_all(dataset, BODHI_DIRECT_OFF, by_atoms, read));
    for (int i = 0; i < FRAMES; i++) {
        CHECK(read[i]);
    }
    bodhi_dataset_close(dataset);
    bodhi_close(store);
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
                bool acknowledged[FRAMES] = {false};
                bool by_atoms = ++n % 2 == 1;
                clear();
                DOING("%s, call %ld", fault_names[kind], n);
                begin_fault((enum fault)kind, n, stays != 0);
                bool fine = live(by_atoms, acknowledged);
                CHECK(fine || !is_harmless);
                calls = end_fault();
                check_afterwards(by_atoms, acknowledged);
            } while (calls >= n);
            (void)printf("%s%s: %ld calls\n", fault_names[kind], stays ? " and after" : "", n - 1);
        }
    }
    remove_faults();
    clear();
}

static void *read_often(void *argument) {
    bodhi_dataset *dataset = argument;
    bool read[FRAMES];
    for (int i = 0; i < 40; i++) {
        uint64_t words[2] = {0};
        CHECK(bodhi_dataset_mark(dataset, 0, 1, FRAMES, words, words + 1) == BODHI_OK);
        CHECK(read_all(dataset, i % 3, false, read));
        CHECK(bodhi_dataset_refresh(dataset) == BODHI_OK);
    }
    return NULL;
}

static void *write_often(void *argument) {
    bodhi_dataset *dataset = argument;
    bool acknowledged[FRAMES] = {false};
    for (int64_t i = 0; i < 10; i++) {
        int64_t dropped;
        bodhi_facts facts;
        write_some(dataset, 0, FRAMES, acknowledged);
        CHECK(bodhi_dataset_drop(dataset, BODHI_ALIEN, &i, 1, &dropped) == BODHI_OK);
        CHECK(bodhi_dataset_query(dataset, &facts) == BODHI_OK);
    }
    return NULL;
}

static void test_threads(void) {
    bodhi_store *store;
    bodhi_dataset *dataset;
    pthread_t threads[4];
    CHECK(bodhi_open(home, BODHI_CREATE, &store) == BODHI_OK);
    bodhi_store_set_quota(store, 1 << 30);
    CHECK(bodhi_dataset_open(store, "/sim1", NULL, 0, BODHI_CREATE, &dataset) == BODHI_OK);
    for (int i = 0; i < 4; i++) {
        CHECK(pthread_create(&threads[i], NULL, i % 2 ? read_often : write_often, dataset) == 0);
    }
    for (int i = 0; i < 4; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
    }
    bodhi_dataset_close(dataset);
    bodhi_close(store);
    clear();
}

int main(void) {
    CHECK(make_scratch(scratch, sizeof scratch, "/tmp"));
    (void)snprintf(home, sizeof home, "%s/store", scratch);
    make_vectors();
    test_threads();
    test_every_call_failing();
    CHECK(rmdir(scratch) == 0);
    return 0;
}
