/* Slices, pushed straight to a store: what is read back, what is refused, and what a disk that fails makes of them. */
#include <math.h>

#include "../check.h"
#include "../draw.h"
#include "../scratch.h"
#include "base/io.h"
#include "net/pusher.h"
#include "store/dataset.h"

char doing[256] = "";

enum { ATOMS = 40000, MOST = 30000 };

static char home[128];
static bodhi_calls real;
static int64_t ids[MOST];
static float rows[3][3 * MOST];
/* --- A disk that fails, or is slow -------------------------------------------------------------------------------- */

static atomic_llong disk_room; /* bytes that may be written to segments */
static atomic_bool sync_fails, is_slow, is_strange;
static atomic_int direct_writes;

static ssize_t limited_pwritev(int fd, const struct iovec *parts, int n, off_t offset) {
    bool direct = (fcntl(fd, F_GETFL) & O_DIRECT) != 0;
    direct_writes += direct;
    if (direct && is_strange) {
        errno = EINVAL; /* as of a file system that wants larger blocks */
        return -1;
    }
    if (is_slow) {
        (void)usleep(direct ? 20000 : 0);
    }
    if (parts[0].iov_len >= 4096 &&
        atomic_fetch_sub(&disk_room, (long long)parts[0].iov_len) < (long long)parts[0].iov_len) {
        errno = ENOSPC;
        return -1;
    }
    return real.pwritev(fd, parts, n, offset);
}

static int failing_fdatasync(int fd) {
    if (sync_fails) {
        errno = EIO;
        return -1;
    }
    return real.fdatasync(fd);
}

static int own_rank;

/* --- Pushing and reading ------------------------------------------------------------------------------------------ */

static void begin(const char *what) {
    DOING("%s", what);
    CHECK(make_scratch(home, sizeof home, "/var/tmp"));
    real = bodhi_io;
    disk_room = INT64_MAX / 2;
    sync_fails = is_slow = is_strange = false;
    bodhi_io.pwritev = limited_pwritev;
    bodhi_io.fdatasync = failing_fdatasync;
}

static void end(void) {
    bodhi_io = real;
    remove_all(home);
}

static int64_t batch = 1 << 20;

static bodhi_pusher *open_pusher(bool durable, const char *launch) {
    bodhi_pusher *pusher;
    bodhi_push_options options = {.durable = durable, .batch_bytes = is_slow ? 1 << 30 : batch, .identity = "test"};
    bodhi_slice_options slices = {.n_atoms = ATOMS, .rank = own_rank, .store = home, .launch = launch};
    CHECK(bodhi_push_open_slices(NULL, 0, "run", "g", 1, &options, &slices, &pusher) == BODHI_OK);
    return pusher;
}

/* Of what the test itself makes and compares, no thread knows: watched, it would take most of the time. */
#define UNWATCHED __attribute__((no_sanitize("thread")))

/* The slice of a frame: its atoms, the same each time, and vectors that tell atom, frame and which they are. */
UNWATCHED static size_t make_slice(int64_t number) {
    drawn = (uint32_t)number / 3 + 1; /* those of some frames are of the same atoms */
    size_t n = 0;
    uint32_t part = number % 7 == 0 ? 40 : 2; /* few, and many */
    for (int64_t atom = 0; atom < ATOMS && n < MOST; atom++) {
        if (draw(part) == 0) {
            ids[n++] = atom;
        }
    }
    if (number % 11 != 0) {
        shuffle(ids, n);
    }
    return n;
}

static float value_of(int64_t number, int64_t atom, int field) {
    float grid = number % 5 == 0 ? 0.25F : 0.123456F; /* some lie on a grid, and are packed */
    return grid * (float)(atom % 1000 + 10L * field + number % 100);
}

UNWATCHED static int push(bodhi_pusher *pusher, int64_t number) {
    size_t n = make_slice(number);
    for (size_t i = 0; i < 3 * n; i++) {
        for (int field = 0; field < 3; field++) {
            rows[field][i] = value_of(number, ids[i / 3], field) + (float)(i % 3);
        }
    }
    float box[6] = {1, 2, 3, 90, 90, (float)number};
    bodhi_frame frame = {.number = number, .time = (double)number, .n_atoms = (int64_t)n, .positions = rows[0]};
    frame.velocities = number % 4 == 1 ? rows[1] : NULL;
    frame.forces = number % 4 == 2 ? rows[2] : NULL;
    frame.box = number % 2 == 0 ? box : NULL;
    return bodhi_push_slice(pusher, &frame, ids);
}

static bodhi_push_facts facts_of(const bodhi_pusher *pusher) {
    bodhi_push_facts facts;
    bodhi_push_query(pusher, &facts);
    return facts;
}

static int64_t acknowledged(const bodhi_pusher *pusher) {
    return facts_of(pusher).acknowledged;
}

/* A dataset of the store, closed with it; NULL: there is none. */
static bodhi_dataset *open_dataset(const char *name, const char *generation, int flags) {
    bodhi_store *store;
    bodhi_dataset *dataset = NULL;
    CHECK(bodhi_open(home, flags, &store) == BODHI_OK);
    int status = bodhi_dataset_open(store, name, generation, strlen(generation), flags, &dataset);
    CHECK(status == BODHI_OK || status == BODHI_ERROR_NOT_FOUND);
    if (dataset == NULL) {
        bodhi_close(store);
    }
    return dataset;
}

static void close_dataset(bodhi_dataset *dataset) {
    bodhi_store *store = dataset->store;
    bodhi_dataset_close(dataset);
    bodhi_close(store);
}

/* The slices of a rank of a launch; NULL: there are none. */
static bodhi_dataset *open_numbered(int rank, const char *launch, int number) {
    char generation[128];
    (void)snprintf(generation, sizeof generation, "slices of rank %d, %d atoms, launch %010d, mark %016llx\ng", rank,
                   ATOMS, number, (unsigned long long)mark_of_name(launch));
    return open_dataset("run [slices]", generation, 0);
}

/* Write a file into a directory of the store. */
static void write_file(const char *directory, const char *name, const char *text) {
    char path[256];
    (void)snprintf(path, sizeof path, "%s/%s/%s", home, directory, name);
    FILE *file = fopen(path, "we");
    CHECK(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0);
}

UNWATCHED static void check_slice(const bodhi_frame *frame) {
    static bool has[ATOMS];
    size_t n = make_slice(frame->number);
    const float *fields[] = {frame->positions, frame->velocities, frame->forces};
    CHECK(frame->n_atoms == (int64_t)n && frame->ids != NULL && frame->time == (double)frame->number);
    CHECK((fields[1] != NULL) == (frame->number % 4 == 1) && (fields[2] != NULL) == (frame->number % 4 == 2));
    memset(has, 0, sizeof has);
    for (size_t i = 0; i < n; i++) {
        has[ids[i]] = true;
    }
    for (size_t i = 0; i < n; i++) {
        CHECK(has[frame->ids[i]] && (i == 0 || frame->ids[i] > frame->ids[i - 1]));
        for (size_t k = 0; k < 9; k++) {
            const float *field = fields[k / 3];
            CHECK(field == NULL ||
                  field[3 * i + k % 3] == value_of(frame->number, frame->ids[i], (int)k / 3) + (float)(k % 3));
        }
    }
}

static int64_t known; /* slices that the dataset says it has, as of the last count */

/* How many of frames 0 to n - 1 can be read, every byte right. */
static int64_t count_right(int64_t n, const char *launch) {
    bodhi_reader *reader;
    bodhi_frame frame;
    int64_t found = 0;
    int64_t *numbers = malloc((size_t)n * sizeof *numbers);
    CHECK(numbers != NULL);
    for (int64_t i = 0; i < n; i++) {
        numbers[i] = i;
    }
    bodhi_dataset *dataset = open_numbered(0, launch, 1); /* of the first launch that pushes */
    CHECK(dataset != NULL);
    bodhi_read_options options = {.fields = BODHI_POSITIONS | BODHI_VELOCITIES | BODHI_FORCES | BODHI_IDS};
    CHECK(bodhi_reader_open(dataset, numbers, n, &options, &reader) == BODHI_OK);
    for (int status; (status = bodhi_reader_next(reader, &frame)) != BODHI_END;) {
        CHECK(status == BODHI_OK || status == BODHI_MISS);
        if (status == BODHI_OK) {
            check_slice(&frame);
            found++;
        }
    }
    bodhi_segment_facts facts[16];
    int64_t segments;
    CHECK(bodhi_dataset_segments(dataset, facts, 16, &segments) == BODHI_OK && segments <= 16);
    known = 0;
    for (int64_t i = 0; i < segments; i++) {
        known += facts[i].frames;
    }
    bodhi_reader_close(reader);
    close_dataset(dataset);
    free(numbers);
    return found;
}

/* --- Tests -------------------------------------------------------------------------------------------------------- */

static void test_read_back(bool durable, bool slow, bool strange) {
    enum { SLICES = 120 };
    begin(durable ? "durable slices" : "slices");
    is_slow = slow;
    is_strange = strange;
    direct_writes = 0;
    bodhi_pusher *pusher = open_pusher(durable, "");
    for (int64_t number = 0; number < SLICES; number++) {
        CHECK(push(pusher, number) == BODHI_OK);
        if (number % 17 == 3 && !slow) { /* the next begins where a block is not full */
            CHECK(bodhi_push_flush(pusher) == BODHI_OK && acknowledged(pusher) == number + 1);
            CHECK(count_right(SLICES, "") == number + 1);
        }
    }
    CHECK(bodhi_push_close(pusher) == BODHI_OK);
    CHECK(direct_writes == 0 || durable);
    CHECK(count_right(SLICES, "") == SLICES);
    pusher = open_pusher(durable, ""); /* once more, as after a restart; and other ones */
    CHECK(push(pusher, 5) >= 0 && push(pusher, SLICES) >= 0 && bodhi_push_flush(pusher) == BODHI_OK);
    CHECK(acknowledged(pusher) == 2);
    (void)make_slice(7);
    bodhi_frame other = {.number = 7, .time = 7, .n_atoms = 10, .positions = rows[0]};
    CHECK(bodhi_push_slice(pusher, &other, ids) == BODHI_ERROR_CONFLICT);
    bodhi_push_abandon(pusher);
    CHECK(count_right(SLICES + 1, "") == SLICES + 1);
    end();
}

/* Slices of a name that a trajectory has. */
static void test_staged(void) {
    begin("a trajectory of the name");
    bodhi_pusher *pusher;
    bodhi_dataset *dataset = open_dataset("run", "other", BODHI_CREATE);
    write_file(bodhi_dataset_directory(dataset), "x-origin.json", "");
    bodhi_slice_options slices = {.n_atoms = ATOMS, .store = home, .launch = ""};
    CHECK(bodhi_push_open_slices(NULL, 0, "run", "g", 1, NULL, &slices, &pusher) == BODHI_ERROR_CONFLICT);
    close_dataset(dataset);
    end();
}

static void test_refused(void) {
    begin("slices that are none");
    bodhi_pusher *pusher = open_pusher(true, "");
    float vectors[12] = {0};
    bodhi_frame frame = {.number = 0, .n_atoms = 4, .positions = vectors};
    const int64_t wrong[][4] = {{0, 1, 2, 0}, {0, 1, 2, ATOMS}, {-1, 1, 2, 3}, {3, 2, 2, 1}};
    for (int i = 0; i < 4; i++) {
        CHECK(bodhi_push_slice(pusher, &frame, wrong[i]) == BODHI_ERROR_ARGUMENT);
        CHECK(strstr(bodhi_message(), "is there twice") != NULL); /* not left to a server */
    }
    CHECK(bodhi_push_slice(pusher, &frame, NULL) == BODHI_ERROR_ARGUMENT && bodhi_push(pusher, &frame) < 0);
    frame.time = NAN;
    CHECK(bodhi_push_slice(pusher, &frame, (const int64_t[]){0, 1, 2, 3}) == BODHI_ERROR_ARGUMENT);
    frame.time = 0;
    vectors[11] = NAN;
    CHECK(bodhi_push_slice(pusher, &frame, (const int64_t[]){0, 1, 2, 3}) == BODHI_ERROR_ARGUMENT);
    vectors[11] = 0;
    frame.number = BODHI_MAX_NUMBER + 1;
    CHECK(bodhi_push_slice(pusher, &frame, (const int64_t[]){0, 1, 2, 3}) == BODHI_ERROR_ARGUMENT);
    frame.number = 0;
    frame.n_atoms = 0;
    CHECK(bodhi_push_slice(pusher, &frame, NULL) == BODHI_OK);
    for (int64_t atom = 0; atom < MOST; atom++) { /* a good part of all, one of them twice */
        ids[atom] = atom;
    }
    ids[MOST / 2] = 7;
    frame = (bodhi_frame){.number = 0, .n_atoms = MOST, .positions = rows[0]};
    CHECK(bodhi_push_slice(pusher, &frame, ids) == BODHI_ERROR_ARGUMENT);
    CHECK(bodhi_push_flush(pusher) == BODHI_OK && acknowledged(pusher) == 0);
    CHECK(bodhi_push_close(pusher) == BODHI_OK);
    end();
}

/* What was acknowledged is there; the rest, pushed once more, is too, and nothing counts twice. */
static void test_full_disk(bool durable, int64_t fits) {
    enum { SLICES = 60 };
    begin("a full disk");
    bodhi_pusher *pusher = open_pusher(durable, "");
    disk_room = fits;
    int status = BODHI_OK;
    for (int64_t number = 0; number < SLICES && status >= 0; number++) {
        status = push(pusher, number);
    }
    status = status >= 0 ? bodhi_push_flush(pusher) : status;
    CHECK(status == BODHI_ERROR_FULL);
    bodhi_push_facts facts = facts_of(pusher);
    CHECK(facts.in_flight == 0 && facts.acknowledged < SLICES && count_right(SLICES, "") >= facts.acknowledged);
    disk_room = INT64_MAX / 2;
    CHECK(push(pusher, 2L * SLICES) >= 0 && bodhi_push_flush(pusher) == BODHI_OK);
    CHECK(acknowledged(pusher) == facts.acknowledged + 1);
    CHECK(count_right(2 * SLICES + 1, "") == known); /* what was undone is known to nobody */
    for (int64_t number = facts.acknowledged; number < SLICES; number++) {
        CHECK(push(pusher, number) >= 0);
    }
    CHECK(bodhi_push_flush(pusher) == BODHI_OK && acknowledged(pusher) == SLICES + 1);
    CHECK(count_right(SLICES, "") == SLICES && bodhi_push_close(pusher) == BODHI_OK);
    CHECK(count_right(SLICES, "") == SLICES);
    end();
}

static void test_failed_sync(void) {
    begin("a sync that fails");
    bodhi_pusher *pusher = open_pusher(true, "");
    CHECK(push(pusher, 0) == BODHI_OK && bodhi_push_flush(pusher) == BODHI_OK && acknowledged(pusher) == 1);
    CHECK(push(pusher, 1) == BODHI_OK);
    sync_fails = true;
    CHECK(bodhi_push_flush(pusher) < 0 && acknowledged(pusher) == 1);
    sync_fails = false;
    CHECK(push(pusher, 2) < 0 && acknowledged(pusher) == 1); /* the writer is not to be trusted any more */
    bodhi_push_abandon(pusher);
    end();
}

/* Whether a rank has slices of the launch under a number. */
static bool is_numbered(int rank, const char *launch, int number) {
    bodhi_dataset *dataset = open_numbered(rank, launch, number);
    if (dataset != NULL) {
        close_dataset(dataset);
    }
    return dataset != NULL;
}

static void push_as(int rank, const char *launch) {
    own_rank = rank;
    bodhi_pusher *pusher = open_pusher(false, launch);
    CHECK(push(pusher, 1) == BODHI_OK && bodhi_push_close(pusher) == BODHI_OK);
    own_rank = 0;
}

/* A later launch supersedes some slices of a rank. */
static void supersede(int rank, const char *launch, int number) {
    bodhi_dataset *dataset = open_numbered(rank, launch, number);
    CHECK(dataset != NULL);
    write_file(bodhi_dataset_directory(dataset), "x-superseded", "");
    close_dataset(dataset);
}

/* Have the store's listing, which is in the order of creation or against it, name these slices anew. */
static void list_anew(int rank, const char *launch, int number) {
    char path[256];
    char aside[256];
    bodhi_dataset *dataset = open_numbered(rank, launch, number);
    (void)snprintf(path, sizeof path, "%s/%s", home, bodhi_dataset_directory(dataset));
    (void)snprintf(aside, sizeof aside, "%s/aside", home);
    CHECK(rename(path, aside) == 0 && rename(aside, path) == 0);
    close_dataset(dataset);
}

/* What may lie beside the slices, and is none. */
static void add_strange_datasets(void) {
    static const char *const generations[] = {"no line", "slices of rank 0, launch 9\n",
                                              "slices of rank 0, lounge 0000000009, mark 0000000000000000\n"};
    char directory[64];
    char path[256];
    for (size_t i = 0; i < LENGTH(generations); i++) {
        bodhi_dataset *dataset = open_dataset("run [slices]", generations[i], BODHI_CREATE);
        (void)snprintf(directory, sizeof directory, "%.16s-%016zx", bodhi_dataset_directory(dataset), i);
        (void)snprintf(path, sizeof path, "%s/%s", home, directory);
        CHECK(mkdir(path, 0700) == 0);
        close_dataset(dataset);
    }
    write_file(directory, "meta", "damaged");
}

static void test_store_that_cannot_be_listed(void) {
    char generation[] = "slices of rank 0, 3 atoms, launch 0000000000, mark 0000000000000000\n";
    char path[] = "gone";
    const bodhi_store gone = {.fd = -1, .path = path};
    CHECK(store_number_launch(&gone, "run", generation, strlen(generation)) == BODHI_ERROR_SYSTEM);
    CHECK(store_number_launch(&gone, "run", generation, 3) == BODHI_OK);
}

/* The ranks of a launch have one number, a later launch the next one; so has a start under the mark of a launch that is
 * known to be superseded, by whatever rank's slices. */
static void test_numbers(void) {
    begin("numbers of launches");
    add_strange_datasets();
    push_as(0, "b");
    push_as(0, "a");
    push_as(1, "b");
    push_as(1, "a");
    for (int rank = 0; rank < 2; rank++) {
        CHECK(is_numbered(rank, "b", 1) && !is_numbered(rank, "b", 2));
        CHECK(is_numbered(rank, "a", 2) && !is_numbered(rank, "a", 1));
    }
    for (int number = 2; number < 8; number++) {
        supersede(number % 2, "a", number);
        push_as(0, "a");
        if (number % 2 == 0) {
            list_anew(0, "a", number);
        }
        push_as(1, "a");
        for (int other = 0; other < 2; other++) {
            CHECK(is_numbered(other, "a", number + 1) && !is_numbered(other, "a", number + 2));
        }
    }
    push_as(2, "b");
    CHECK(is_numbered(2, "b", 1));
    test_store_that_cannot_be_listed();
    end();
}

static void test_launches(void) {
    begin("slices of two launches");
    bodhi_pusher *first = open_pusher(false, "first");
    CHECK(push(first, 0) == BODHI_OK && bodhi_push_close(first) == BODHI_OK);
    bodhi_pusher *second = open_pusher(false, "second");
    (void)make_slice(0);
    bodhi_frame other = {.number = 0, .n_atoms = 10, .positions = rows[0]};
    CHECK(bodhi_push_slice(second, &other, ids) == BODHI_OK && bodhi_push_close(second) == BODHI_OK);
    CHECK(count_right(1, "first") == 1 && is_numbered(0, "second", 2));
    end();
}

static const char *const launchers[] = {"PMIX_NAMESPACE", "PALS_APID",        "FLUX_JOB_ID",         "SLURM_JOB_ID",
                                        "SLURM_STEP_ID",  "SLURM_HET_JOB_ID", "SLURM_RESTART_COUNT", "PMI_JOBID"};

static void no_launcher(void) {
    for (size_t i = 0; i < LENGTH(launchers); i++) {
        CHECK(unsetenv(launchers[i]) == 0);
    }
}

static void test_launchers(void) {
    DOING("what a launcher says");
    no_launcher();
    CHECK(mark_of_launcher() == 0 && mark_of_name("") == 0 && mark_of_name("a") != mark_of_name("b"));
    CHECK(setenv("SLURM_JOB_ID", "1", 1) == 0);
    uint64_t job = mark_of_launcher();
    CHECK(setenv("SLURM_STEP_ID", "0", 1) == 0);
    uint64_t step = mark_of_launcher();
    CHECK(setenv("SLURM_RESTART_COUNT", "1", 1) == 0);
    uint64_t restarted = mark_of_launcher();
    CHECK(job != 0 && step != job && restarted != step && restarted != job && mark_of_launcher() == restarted);
    CHECK(setenv("SLURM_HET_JOB_ID", "1", 1) == 0);
    uint64_t component = mark_of_launcher();
    CHECK(setenv("SLURM_JOB_ID", "2", 1) == 0 && mark_of_launcher() == component);
    CHECK(setenv("PMIX_NAMESPACE", "prterun-1@1", 1) == 0);
    uint64_t space = mark_of_launcher();
    CHECK(unsetenv("SLURM_HET_JOB_ID") == 0 && mark_of_launcher() == space && space != component);
    CHECK(setenv("PMIX_NAMESPACE", "slurm.pmix.77.0", 1) == 0 && setenv("SLURM_RESTART_COUNT", "0", 1) == 0);
    uint64_t before = mark_of_launcher();
    CHECK(setenv("SLURM_RESTART_COUNT", "1", 1) == 0 && mark_of_launcher() != before);
}

int main(void) {
    test_read_back(false, false, false);
    test_read_back(true, false, false);
    test_read_back(true, true, false);
    test_read_back(true, false, true);
    test_refused();
    test_staged();
    for (batch = 1 << 20; batch <= 4 << 20; batch *= 2) {
        for (int64_t fits = 0; fits < 12; fits += 3) {
            test_full_disk(true, fits << 20);
            test_full_disk(false, (fits << 20) + 500000);
        }
    }
    batch = 1 << 20;
    test_failed_sync();
    test_numbers();
    test_launches();
    test_launchers();
    return 0;
}
