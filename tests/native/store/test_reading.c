/* Every way to read. */
#include <stdlib.h>

#include "../check.h"
#include "sample.h"

/* Between whose ends lies less than is read over, and more than is where little is to be read. */
enum { LARGE_ATOMS = 700 };

static void test_ways(void) {
    begin_both("every way to read", FRAMES, 40000);
    const bodhi_range ranges[] = {{0, 5}, {120, 130}, {131, 180}, {640, 700}};
    for (int way = 0; way < 24; way++) {
        bodhi_read_options options = {.direct = way % 3 == 0 ? BODHI_DIRECT_ON : BODHI_DIRECT_OFF,
                                      .no_thread = way / 3 % 2,
                                      .sparse = way / 6 % 2,
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

/* Bytes that reading two far parts of a large frame takes. */
static int64_t bytes_of_parts(bool sparse) {
    const bodhi_range ranges[] = {{0, 5}, {LARGE_ATOMS - 5, LARGE_ATOMS}};
    bodhi_read_options options = {.fields = BODHI_POSITIONS,
                                  .direct = BODHI_DIRECT_OFF,
                                  .no_thread = 1,
                                  .sparse = sparse,
                                  .atoms = ranges,
                                  .n_ranges = 2};
    bodhi_reader *reader;
    bodhi_frame frame;
    int64_t number = 50;
    CHECK(bodhi_reader_open(run, &number, 1, &options, &reader) == BODHI_OK);
    CHECK(bodhi_reader_next(reader, &frame) == BODHI_OK && frame.n_atoms == LARGE_ATOMS);
    for (int64_t i = 0; i < 5; i++) {
        CHECK(frame.positions[3 * i] == value_of(50, 3 * i));
        CHECK(frame.positions[3 * (LARGE_ATOMS - 1 - i)] == value_of(50, 3 * (LARGE_ATOMS - 1 - i)));
    }
    int64_t bytes = bodhi_reader_bytes(reader);
    bodhi_reader_close(reader);
    return bytes;
}

/* Of one record, its head tells where every block lies, and between blocks that are asked for nothing is read. */
static void test_sparse(void) {
    begin_empty("parts that lie far apart");
    const bodhi_write_options small = {.block_atoms = 100, .encoding = BODHI_ENCODING_RAW};
    bodhi_writer *writer;
    CHECK(bodhi_writer_open(run, BODHI_NATIVE, &small, &writer) == BODHI_OK);
    CHECK(append(writer, 50, LARGE_ATOMS) == BODHI_OK && bodhi_writer_close(writer) == BODHI_OK);
    CHECK(bodhi_dataset_refresh(run) == BODHI_OK);
    CHECK(bytes_of_parts(false) >= LARGE_ATOMS * 12L);
    CHECK(bytes_of_parts(true) < 5000);
    close_all();
}

int main(void) {
    make_home();
    test_ways();
    test_sparse();
    remove_home();
    return 0;
}
