/* A store that many threads use, and one of which the Nth system call fails, for every N; for sanitizers. */
#include "../check.h"
#include "../scratch.h"
#include "base/io.h"
#include "write/writer.h"

/* --- Faults ------------------------------------------------------------------------------------------------------ */

char doing[256];

enum fault { NO_FAULT, FULL, QUOTA, BAD_SECTOR, INTERRUPTED, CUT_SHORT, NO_DESCRIPTORS, N_FAULTS };

static enum fault fault = NO_FAULT;
static long fault_at;    /* the call that fails, from 1 */
static bool fault_stays; /* and all after it */
static atomic_long calls;
static bodhi_calls real;

/* Whether this call fails; `matches`: it is of a kind that this fault can hit. */
static bool fails(bool matches) {
    if (!matches || fault == NO_FAULT) {
        return false;
    }
    long call = atomic_fetch_add(&calls, 1) + 1;
    bool hit = call == fault_at || (fault_stays && call > fault_at);
    if (hit) {
        errno = (int[]){0, ENOSPC, EDQUOT, EIO, EINTR, 0, EMFILE}[fault];
    }
    return hit;
}

static bool is_full(void) {
    return fault == FULL || fault == QUOTA;
}

/* A call that fails `when` this fault can hit it. */
#define FAULT(name, parameters, arguments, when)                                                                       \
    static int fault_##name parameters {                                                                               \
        return fails(when) ? -1 : real.name arguments;                                                                 \
    }

static int fault_openat(int directory, const char *path, int flags, mode_t mode) {
    bool matches =
        fault == NO_DESCRIPTORS || fault == INTERRUPTED || fault == BAD_SECTOR || (is_full() && (flags & O_CREAT) != 0);
    return fails(matches) ? -1 : real.openat(directory, path, flags, mode);
}

static int fault_close(int fd) {
    int result = real.close(fd);
    return fails(fault == BAD_SECTOR) ? -1 : result;
}

static ssize_t fault_preadv2(int fd, const struct iovec *parts, int n, off_t offset, int flags) {
    bool hit = fails(fault == BAD_SECTOR || fault == INTERRUPTED || fault == CUT_SHORT);
    if (hit && fault == CUT_SHORT) {
        struct iovec part = {.iov_base = parts->iov_base, .iov_len = parts->iov_len / 2 + 1};
        return real.preadv2(fd, &part, 1, offset, flags);
    }
    return hit ? -1 : real.preadv2(fd, parts, n, offset, flags);
}

static ssize_t fault_pwritev(int fd, const struct iovec *parts, int n, off_t offset) {
    bool hit = fails(fault != NO_DESCRIPTORS);
    if (hit && fault != INTERRUPTED) {
        struct iovec part = {.iov_base = parts->iov_base, .iov_len = parts->iov_len / 2 + 1};
        ssize_t put = real.pwritev(fd, &part, 1, offset); /* what failed may have been written in part */
        errno = (int[]){0, ENOSPC, EDQUOT, EIO, EINTR, 0, EMFILE}[fault];
        return fault == CUT_SHORT ? put : -1;
    }
    return hit ? -1 : real.pwritev(fd, parts, n, offset);
}

FAULT(fdatasync, (int fd), (fd), fault == BAD_SECTOR || is_full())
FAULT(ftruncate, (int fd, off_t length), (fd, length), fault == BAD_SECTOR || fault == INTERRUPTED || is_full())
FAULT(fstat, (int fd, struct stat *status), (fd, status), fault == BAD_SECTOR)
FAULT(fcntl, (int fd, int command, void *argument), (fd, command, argument),
      fault == INTERRUPTED || fault == BAD_SECTOR)
FAULT(unlinkat, (int directory, const char *path, int flags), (directory, path, flags), fault == BAD_SECTOR)
FAULT(renameat, (int a, const char *b, int c, const char *d), (a, b, c, d), fault == BAD_SECTOR || is_full())
FAULT(linkat, (int a, const char *b, int c, const char *d, int flags), (a, b, c, d, flags),
      fault == BAD_SECTOR || is_full())
FAULT(mkdirat, (int directory, const char *path, mode_t mode), (directory, path, mode),
      fault == BAD_SECTOR || is_full())

static void install_faults(void) {
    real = bodhi_io;
    bodhi_io.openat = fault_openat;
    bodhi_io.close = fault_close;
    bodhi_io.preadv2 = fault_preadv2;
    bodhi_io.pwritev = fault_pwritev;
    bodhi_io.fdatasync = fault_fdatasync;
    bodhi_io.ftruncate = fault_ftruncate;
    bodhi_io.fstat = fault_fstat;
    bodhi_io.fcntl = fault_fcntl;
    bodhi_io.unlinkat = fault_unlinkat;
    bodhi_io.renameat = fault_renameat;
    bodhi_io.linkat = fault_linkat;
    bodhi_io.mkdirat = fault_mkdirat;
}

/* --- A store in a scratch directory ------------------------------------------------------------------------------ */

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

/* Read all frames; read[number] says which were there. False if a reader could not be had. */
static bool read_all(bodhi_dataset *dataset, int direct, bool *read) {
    int64_t numbers[FRAMES];
    for (int i = 0; i < FRAMES; i++) {
        numbers[i] = (i * 5 + 3) % FRAMES;
    }
    memset(read, 0, FRAMES * sizeof *read);
    bodhi_reader *reader;
    bodhi_range all[] = {{0, 1}, {1, INT64_MAX}}; /* read as if they were some */
    bodhi_read_options options = {.direct = direct, .request_bytes = 100000, .ring = 2};
    if (fault_at % 2 == 1) {
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
static bool live(bool *acknowledged) {
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
        fine = read_all(dataset, BODHI_DIRECT_ON, read) && bodhi_dataset_refresh(dataset) == BODHI_OK;
        for (int i = 0; i < FRAMES; i++) {
            fine = fine && read[i];
        }
        bodhi_dataset_close(dataset);
    }
    bodhi_close(store);
    return fine;
}

static void check_afterwards(const bool *acknowledged) {
    bodhi_store *store;
    bodhi_dataset *dataset;
    bool read[FRAMES];
    CHECK(bodhi_open(home, BODHI_CREATE, &store) == BODHI_OK);
    CHECK(bodhi_dataset_open(store, "/sim1", "g", 1, BODHI_CREATE, &dataset) == BODHI_OK);
    CHECK(read_all(dataset, BODHI_DIRECT_OFF, read));
    for (int i = 0; i < FRAMES; i++) {
        CHECK(read[i] || !acknowledged[i]);
    }
    bool all[FRAMES] = {false};
    write_some(dataset, 0, FRAMES, all); /* it can be used on */
    CHECK(read_all(dataset, BODHI_DIRECT_OFF, read));
    for (int i = 0; i < FRAMES; i++) {
        CHECK(read[i]);
    }
    bodhi_dataset_close(dataset);
    bodhi_close(store);
}

/* The Nth call fails, for every N. */
static void test_every_call_failing(void) {
    install_faults();
    for (int kind = FULL; kind < N_FAULTS; kind++) {
        for (int stays = 0; stays < 2; stays++) {
            if (stays && (kind == INTERRUPTED || kind == CUT_SHORT)) {
                continue;
            }
            long n = 0;
            do {
                bool acknowledged[FRAMES] = {false};
                clear();
                DOING("fault %d, call %ld", kind, n + 1);
                fault = (enum fault)kind;
                fault_stays = stays != 0;
                fault_at = ++n;
                atomic_store(&calls, 0);
                bool fine = live(acknowledged);
                CHECK(fine || (kind != INTERRUPTED && kind != CUT_SHORT));
                fault = NO_FAULT;
                check_afterwards(acknowledged);
            } while (atomic_load(&calls) >= n);
            (void)printf("fault %d%s: %ld calls\n", kind, stays ? " and after" : "", n - 1);
        }
    }
    bodhi_io = real;
    clear();
}

/* --- Marking ----------------------------------------------------------------------------------------------------- */

static bool is_held(bodhi_dataset *dataset, int kind, int64_t number) {
    uint64_t found;
    int64_t count;
    CHECK(bodhi_dataset_numbers(dataset, kind, number, &found, 1, &count) == BODHI_OK);
    return count == 1 && found == (uint64_t)number;
}

/* Mark in words of just the size that is needed. */
static void mark(bodhi_dataset *dataset, int64_t first, int64_t step, int64_t count, uint64_t *words[2]) {
    size_t n = (size_t)(count + 63) / 64;
    for (int kind = BODHI_NATIVE; kind <= BODHI_ALIEN; kind++) {
        words[kind] = calloc(n, sizeof **words);
        CHECK(words[kind] != NULL);
    }
    CHECK(bodhi_dataset_mark(dataset, first, step, count, words[0], words[1]) == BODHI_OK);
    CHECK(count % 64 == 0 || (words[0][n - 1] | words[1][n - 1]) >> (count % 64) == 0);
}

static void check_marks(bodhi_dataset *dataset) {
    const int64_t steps[] = {1, 2, 7, FRAMES - 1};
    for (int i = 0; i < 8; i++) {
        int64_t step = i % 2 ? -steps[i / 2] : steps[i / 2];
        int64_t first = i % 2 ? FRAMES + 99 : 0;
        int64_t count = (FRAMES + 99) / steps[i / 2] + 1;
        uint64_t *words[2];
        mark(dataset, first, step, count, words);
        for (int kind = BODHI_NATIVE; kind <= BODHI_ALIEN; kind++) {
            for (int64_t p = 0; p < count; p++) {
                CHECK((words[kind][p / 64] >> (p % 64) & 1) == is_held(dataset, kind, first + p * step));
            }
            free(words[kind]);
        }
    }
}

static void check_refusals_of_marks(bodhi_dataset *dataset) {
    const int64_t wrong[][3] = {{-1, 1, 1}, {0, 0, 1}, {0, 1, -1}, {5, -1, 7}, {INT64_MAX, 1, 2}, {1, INT64_MAX, 3}};
    uint64_t words[2] = {0};
    for (size_t i = 0; i < LENGTH(wrong); i++) {
        CHECK(bodhi_dataset_mark(dataset, wrong[i][0], wrong[i][1], wrong[i][2], words, words + 1) ==
              BODHI_ERROR_ARGUMENT);
    }
    CHECK(bodhi_dataset_mark(NULL, 0, 1, 1, words, words) == BODHI_ERROR_ARGUMENT);
    CHECK(bodhi_dataset_mark(dataset, 0, 1, 1, NULL, words) == BODHI_ERROR_ARGUMENT);
    CHECK(bodhi_dataset_mark(dataset, 0, 1, 0, NULL, NULL) == BODHI_OK);
    CHECK((words[0] | words[1]) == 0);
}

/* --- Threads ----------------------------------------------------------------------------------------------------- */

static void *read_often(void *argument) {
    bodhi_dataset *dataset = argument;
    bool read[FRAMES];
    for (int i = 0; i < 40; i++) {
        uint64_t *words[2];
        mark(dataset, 0, 1, FRAMES, words);
        free(words[0]);
        free(words[1]);
        CHECK(read_all(dataset, i % 3, read));
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
    check_marks(dataset);
    check_refusals_of_marks(dataset);
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
