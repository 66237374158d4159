/* Frames whose content is known by their number; see frames.h. */
#include "frames.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "../check.h"
#include "disk.h"

const char *const dataset_names[DATASETS] = {"/pushed", "/cached"};

static float *contents[DATASETS][LATE_FRAMES];
static float box[6] = {30, 40, 50, 90, 80, 70};
static int are_large;

static int64_t atoms_of(int64_t number) {
    if (are_large) {
        return 9000 + number;
    }
    return number % 8 == 7 ? 1200 : 4 + number;
}

void frames_make(int large) {
    are_large = large;
    for (uint32_t dataset = 0; dataset < DATASETS; dataset++) {
        for (int64_t number = 0; number < LATE_FRAMES; number++) {
            chance c = {.state = dataset * (uint64_t)1000 + (uint64_t)number};
            size_t n = (size_t)atoms_of(number) * 3;
            float *values = realloc(contents[dataset][number], n * sizeof *values);
            CHECK(values != NULL);
            contents[dataset][number] = values;
            for (size_t i = 0; i < n; i++) { /* every other frame lies on a grid and is packed */
                values[i] =
                    number % 2 == 0 ? (float)draw(&c, 3000) * 0.001F * 10.0F : (float)draw(&c, 1U << 30) / 7777.0F;
            }
        }
    }
}

bodhi_frame frame_of(uint32_t dataset, int64_t number) {
    float *values = contents[dataset][number];
    return (bodhi_frame){.number = number,
                         .time = 0.5 * (double)number,
                         .n_atoms = atoms_of(number),
                         .positions = values,
                         .velocities = number % 3 == 0 ? values : NULL,
                         .box = number % 5 == 0 ? NULL : box};
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
    CHECK(frame->box == NULL || right.box == NULL || same_bits(frame->box, right.box, sizeof box));
}

uint64_t frames_read(bodhi_dataset *opened, uint32_t dataset, uint64_t wanted) {
    int64_t numbers[64];
    int64_t n = 0;
    for (int64_t number = 0; number < 64; number++) {
        if (wanted >> number & 1) {
            numbers[n++] = number;
        }
    }
    bodhi_read_options options = {.direct = BODHI_DIRECT_OFF, .no_thread = 1, .request_bytes = 65536, .ring = 2};
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
