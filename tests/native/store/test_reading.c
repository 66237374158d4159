/* Every way to read. */
#include <stdlib.h>

#include "../check.h"
#include "sample.h"

static void test_ways(void) {
    begin_both("every way to read", FRAMES, 40000);
    const bodhi_range ranges[] = {{0, 5}, {120, 130}, {131, 180}, {640, 700}};
    for (int way = 0; way < 24; way++) {
        bodhi_read_options options = {.direct = way % 3 == 0 ? BODHI_DIRECT_ON : BODHI_DIRECT_OFF,
                                      .no_thread = way / 3 % 2,
                                      .request_bytes = way % 2 == 0 ? 30000 : 400000,
                                      .ring = 2};
        if (way >= 12) {
            options.atoms = ranges;
            options.n_ranges = 4;
        }
        CHECK(read_all(&options) == all_frames);
    }
    /* The aliens, in many segments, in which records begin at the same places. */
    bodhi_usage usage;
    bodhi_stored_segment *listed;
    int64_t n;
    CHECK(bodhi_survey(home, &usage, &listed, &n) == BODHI_OK && n > 5);
    CHECK(bodhi_store_evict(store, &listed[n - 1]) == BODHI_OK && bodhi_dataset_refresh(run) == BODHI_OK);
    free(listed);
    bodhi_read_options options = {.no_thread = 1, .request_bytes = 1 << 20, .ring = 2};
    CHECK(read_all(&options) == all_frames);
    bodhi_reader *reader;
    bodhi_frame frame;
    int64_t number = 77;
    CHECK(bodhi_reader_open(run, &number, 1, NULL, &reader) == BODHI_OK);
    CHECK(bodhi_reader_next(reader, &frame) == BODHI_MISS && frame.reason == BODHI_REASON_ABSENT);
    bodhi_reader_close(reader);
    close_all();
}

int main(void) {
    make_home();
    test_ways();
    remove_home();
    return 0;
}
