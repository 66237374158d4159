/* Every way to read. */
#include "sample.h"

/* Between whose ends lies more than is read over. */
enum { FAR_ATOMS = 20000 };

static void test_ways(void) {
    begin_both("every way to read", FRAMES, 40000);
    const bodhi_range ranges[] = {{0, 5}, {120, 130}, {131, 180}, {640, 700}};
    for (int way = 0; way < 12; way++) {
        bodhi_read_options options = {.direct = way % 3 == 0 ? BODHI_DIRECT_ON : BODHI_DIRECT_OFF,
                                      .no_thread = way / 3 % 2,
                                      .request_bytes = way % 2 == 0 ? 30000 : 400000,
                                      .ring = 2};
        if (way >= 6) {
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

/* Between blocks that lie far apart nothing is read: the head of the record tells where each lies. */
static void test_far_parts(void) {
    begin_empty("parts that lie far apart");
    const bodhi_write_options small = {.block_atoms = 100, .encoding = BODHI_ENCODING_RAW};
    const bodhi_range ranges[] = {{0, 5}, {FAR_ATOMS - 5, FAR_ATOMS}};
    bodhi_read_options options = {
        .fields = BODHI_POSITIONS, .direct = BODHI_DIRECT_OFF, .no_thread = 1, .atoms = ranges, .n_ranges = 2};
    bodhi_writer *writer;
    bodhi_reader *reader;
    bodhi_frame frame;
    int64_t number = 50;
    CHECK(bodhi_writer_open(run, BODHI_NATIVE, &small, &writer) == BODHI_OK);
    CHECK(append(writer, number, FAR_ATOMS) == BODHI_OK && bodhi_writer_close(writer) == BODHI_OK);
    CHECK(bodhi_dataset_refresh(run) == BODHI_OK);
    CHECK(bodhi_reader_open(run, &number, 1, &options, &reader) == BODHI_OK);
    CHECK(bodhi_reader_next(reader, &frame) == BODHI_OK && frame.n_atoms == FAR_ATOMS);
    for (int64_t i = 0; i < 5; i++) {
        CHECK(frame.positions[3 * i] == value_of(number, 3 * i));
        CHECK(frame.positions[3 * (FAR_ATOMS - 1 - i)] == value_of(number, 3 * (FAR_ATOMS - 1 - i)));
    }
    CHECK(bodhi_reader_bytes(reader) < FAR_ATOMS * 12L / 4);
    bodhi_reader_close(reader);
    close_all();
}

int main(void) {
    make_home();
    test_ways();
    test_far_parts();
    remove_home();
    return 0;
}
