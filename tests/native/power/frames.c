/* Frames whose content is known by their number; see frames.h. */
#include "frames.h"

#include "../check.h"
#include "disk.h"
#include "segments/record.h"

static const char of_rank_0[] = "slices of rank 0, 300 atoms, launch 0000000001, mark 0000000000000000\n";
static const char of_rank_1[] = "slices of rank 1, 300 atoms, launch 0000000001, mark 0000000000000000\n";
const known_dataset known[DATASETS] = {
    [PUSHED] = {"store", "pushed", "", NULL},
    [CACHED] = {"store", "/cached", "", "x-origin.json"},
    [SLICES] = {"store", "made" BODHI_SLICES_SUFFIX, of_rank_0, NULL},
    [SLICES + 1] = {"store", "made" BODHI_SLICES_SUFFIX, of_rank_1, NULL},
    [WHOLE] = {"store", "made", "", NULL},
    [COPIED] = {"other", "copied", "", NULL},
    [PART] = {"store", "/cached [4 atoms 0123456789abcdef]", "", "x-atoms"},
};

static float *contents[DATASETS][LATE_FRAMES];
static uint32_t *atoms_in[RANKS][LATE_FRAMES]; /* of a slice */
static int64_t counts[DATASETS][LATE_FRAMES];
static float box[6] = {30, 40, 50, 90, 80, 70};

static bool is_sliced(uint32_t dataset) {
    return dataset >= SLICES && dataset < SLICES + RANKS;
}

static int64_t atoms_of(uint32_t dataset, int64_t number, int large) {
    if (dataset == WHOLE || is_sliced(dataset)) {
        return SLICED;
    }
    return large ? 9000 + number : number % 8 == 7 ? 1200 : 4 + number;
}

static void make_frame(uint32_t dataset, int64_t number, int large) {
    chance c = {.state = (dataset == COPIED ? PUSHED : dataset) * (uint64_t)1000 + (uint64_t)number};
    size_t n = (size_t)atoms_of(dataset, number, large) * 3;
    float *values = realloc(contents[dataset][number], n * sizeof *values);
    CHECK(values != NULL);
    contents[dataset][number] = values;
    counts[dataset][number] = (int64_t)n / 3;
    for (size_t i = 0; i < n; i++) { /* every other frame lies on a grid and is packed */
        values[i] = number % 2 == 0 ? (float)draw(&c, 3000) * 0.001F * 10.0F : (float)draw(&c, 1U << 30) / 7777.0F;
    }
}

/* Share the atoms of a whole frame out; neighbouring frames are often shared out alike. */
static void make_slices(int64_t number) {
    chance c = {.state = (uint64_t)number / 3};
    const float *whole = contents[WHOLE][number];
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        atoms_in[rank][number] = realloc(atoms_in[rank][number], SLICED * sizeof(uint32_t));
        CHECK(atoms_in[rank][number] != NULL);
        counts[SLICES + rank][number] = 0;
    }
    for (uint32_t atom = 0; atom < SLICED; atom++) {
        uint32_t rank = atom < RANKS ? atom : draw(&c, RANKS);
        int64_t at = counts[SLICES + rank][number]++;
        atoms_in[rank][number][at] = atom;
        memcpy(contents[SLICES + rank][number] + 3 * at, whole + (size_t)3 * atom, 3 * sizeof *whole);
    }
}

void frames_make(int large) {
    for (int64_t number = 0; number < LATE_FRAMES; number++) {
        for (uint32_t dataset = 0; dataset < DATASETS; dataset++) {
            make_frame(dataset, number, large);
        }
        make_slices(number);
    }
}

bodhi_frame frame_of(uint32_t dataset, int64_t number) {
    float *values = contents[dataset][number];
    return (bodhi_frame){.number = number,
                         .time = 0.5 * (double)number,
                         .n_atoms = counts[dataset][number],
                         .positions = values,
                         .velocities = number % 3 == 0 ? values : NULL,
                         .box = number % 5 == 0 ? NULL : box,
                         .ids = is_sliced(dataset) ? atoms_in[dataset - SLICES][number] : NULL};
}

static bool same_bits(const void *left, const void *right, size_t bytes) {
    return memcmp(left, right, bytes) == 0;
}

static void check_frame(const bodhi_frame *frame, uint32_t dataset) {
    bodhi_frame right = frame_of(dataset, frame->number);
    size_t bytes = (size_t)right.n_atoms * 12;
    CHECK(frame->n_atoms == right.n_atoms && frame->time == right.time);
    CHECK((frame->velocities == NULL) == (right.velocities == NULL) && (frame->box == NULL) == (right.box == NULL));
    CHECK(same_bits(frame->positions, right.positions, bytes));
    CHECK(frame->velocities == NULL || right.velocities == NULL ||
          same_bits(frame->velocities, right.velocities, bytes));
    CHECK((frame->ids == NULL) == (right.ids == NULL));
    CHECK(frame->ids == NULL || same_bits(frame->ids, right.ids, (size_t)right.n_atoms * sizeof *right.ids));
    CHECK(frame->box == NULL || right.box == NULL || same_bits(frame->box, right.box, sizeof box));
}

int64_t numbers_of(uint64_t frames, int64_t numbers[64]) {
    int64_t n = 0;
    for (int64_t number = 0; number < 64; number++) {
        if (frames >> number & 1) {
            numbers[n++] = number;
        }
    }
    return n;
}

uint64_t frames_read(bodhi_dataset *opened, uint32_t dataset, uint64_t wanted) {
    int64_t numbers[64];
    int64_t n = numbers_of(wanted, numbers);
    bodhi_read_options options = {.fields = BODHI_POSITIONS | BODHI_VELOCITIES | BODHI_IDS,
                                  .direct = BODHI_DIRECT_OFF,
                                  .no_thread = 1,
                                  .request_bytes = 65536,
                                  .ring = 2};
    bodhi_reader *reader;
    CHECK(bodhi_reader_open(opened, numbers, n, &options, &reader) == BODHI_OK);
    bodhi_frame frame;
    uint64_t there = 0;
    int status;
    while ((status = bodhi_reader_next(reader, &frame)) != BODHI_END) {
        CHECK(status == BODHI_OK || status == BODHI_MISS);
        if (status == BODHI_OK) {
            check_frame(&frame, dataset);
            there |= UINT64_C(1) << frame.number;
        }
    }
    bodhi_reader_close(reader);
    return there;
}

int known_open_store(const char *root, uint32_t dataset, int flags, bodhi_store **store) {
    char path[2 * PATH_BYTES];
    (void)snprintf(path, sizeof path, "%s/%s", root, known[dataset].store);
    return bodhi_open(path, flags, store);
}

void known_directory(uint32_t dataset, char *directory, size_t size) {
    const known_dataset *one = &known[dataset];
    (void)snprintf(directory, size, "%016" PRIx64 "-%016" PRIx64, hash_bytes(one->name, strlen(one->name)),
                   hash_bytes(one->generation, strlen(one->generation)));
}

int known_open(bodhi_store *store, uint32_t dataset, int flags, bodhi_dataset **opened) {
    const known_dataset *one = &known[dataset];
    return bodhi_dataset_open(store, one->name, one->generation, strlen(one->generation), flags, opened);
}
