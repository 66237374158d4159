/* Frames that are there already, and what a writer may say of them; every way to read. */
#include "sample.h"
#include "store/dataset.h"
#include "syncs.h"

static int failing_errno; /* of opening segments for reading; 0: none */

static int failing_openat(int directory, const char *path, int flags, mode_t mode) {
    if (failing_errno != 0 && (flags & O_ACCMODE) == O_RDONLY && strstr(path, ".seg") != NULL) {
        errno = failing_errno;
        return -1;
    }
    return real.openat(directory, path, flags, mode);
}

static int append_one(int64_t number, int *flushed) {
    bodhi_writer *writer = open_writer(BODHI_NATIVE);
    int status = append(writer, number, ATOMS);
    *flushed = bodhi_flush(writer, 1);
    CHECK(bodhi_writer_close(writer) <= 0);
    return status;
}

/* A frame that was there is acknowledged only if it can be read back and is on disk; what failed once is not taken for
 * a failure for good, but for a failed sync, of which nothing is known any more. */
static void test_existing_frames(void) {
    int flushed;
    begin_empty("frames that are there");
    bodhi_io.openat = failing_openat;
    watch_syncs();
    CHECK(append_one(BODHI_MAX_NUMBER, &flushed) == BODHI_OK && is_there(BODHI_MAX_NUMBER));
    CHECK(append_one(BODHI_MAX_NUMBER + 1, &flushed) == BODHI_ERROR_ARGUMENT && flushed == BODHI_OK);
    CHECK(append_one(0, &flushed) == BODHI_OK && flushed == BODHI_OK);
    CHECK(append_one(0, &flushed) == BODHI_EXISTS && flushed == BODHI_OK);
    for (int64_t beyond = 0; beyond < 2; beyond++) {
        const bodhi_write_options most = {.block_atoms = UINT32_MAX / 16 + beyond};
        bodhi_writer *writer = NULL;
        CHECK(bodhi_writer_open(run, 0, &most, &writer) == (beyond == 0 ? BODHI_OK : BODHI_ERROR_ARGUMENT));
        CHECK(bodhi_writer_close(writer) == BODHI_OK);
    }
    failing_errno = EMFILE;
    CHECK(append_one(0, &flushed) == BODHI_ERROR_SYSTEM);
    failing_errno = 0;
    CHECK(append_one(0, &flushed) == BODHI_EXISTS && flushed == BODHI_OK);
    atomic_store(&sync_fails, true);
    CHECK(append_one(0, &flushed) == BODHI_EXISTS && flushed == BODHI_ERROR_SYSTEM);
    CHECK(append_one(0, &flushed) == BODHI_OK && flushed == BODHI_OK); /* elsewhere */
    CHECK(append_one(0, &flushed) == BODHI_EXISTS && flushed == BODHI_OK);
    forget_syncs(); /* its number is free for another file soon */
    bodhi_dataset *other = open_again(0);
    bodhi_segment_facts facts[4];
    int64_t n;
    bodhi_place at;
    CHECK(bodhi_dataset_segments(other, facts, 4, &n) == BODHI_OK && n == 2);
    for (int64_t i = 0; i < n; i++) {
        bodhi_stored_segment stored = {.id = facts[i].id, .kind = facts[i].kind};
        memcpy(stored.directory, bodhi_dataset_directory(other), sizeof other->directory);
        CHECK(bodhi_store_evict(store, &stored) == BODHI_OK);
    }
    CHECK(append_one(0, &flushed) == BODHI_OK && flushed == BODHI_OK);
    CHECK(bodhi_dataset_refresh(other) == BODHI_OK);
    CHECK(bodhi_dataset_locate(other, &(int64_t){0}, 1, &at) == BODHI_OK && at.found && at.kind == BODHI_NATIVE);
    drop_frames(other, &(int64_t){0}, 1);
    CHECK(append_one(0, &flushed) == BODHI_OK && flushed == BODHI_OK);
    CHECK(append_one(0, &flushed) == BODHI_EXISTS && flushed == BODHI_OK);
    bodhi_dataset_close(other);
    close_all();
}

/* A frame that is there is taken once more if it is the same to the last bit. */
static void test_other_frames(void) {
    float positions[ATOMS * 3] = {0};
    float box[6] = {30, 40, 50, 90, 80, 70};
    begin_empty("frames of one number that differ");
    bodhi_writer *writer = open_writer(BODHI_NATIVE);
    bodhi_frame frame = {.number = 1, .n_atoms = ATOMS, .positions = positions, .box = box};
    CHECK(bodhi_append(writer, &frame) == BODHI_OK);
    CHECK(bodhi_append(writer, &frame) == BODHI_EXISTS);
    frame.time = 1;
    CHECK(bodhi_append(writer, &frame) == BODHI_ERROR_CONFLICT);
    frame.time = 0;
    box[5] = 71;
    CHECK(bodhi_append(writer, &frame) == BODHI_ERROR_CONFLICT);
    box[5] = 70;
    positions[ATOMS * 3 - 1] += 1;
    CHECK(bodhi_append(writer, &frame) == BODHI_ERROR_CONFLICT);
    CHECK(bodhi_writer_close(writer) == BODHI_OK);
    close_all();
}

/* A copy that is damaged is passed over, and the frame written again. */
static void test_damaged_copy(void) {
    begin("a frame whose copy is damaged");
    bodhi_place at = place_of(5);
    flip(file_of('n', ".seg"), at.offset + at.length - 64);
    (void)alarm(10); /* a search that does not end */
    bodhi_writer *writer = open_writer(BODHI_NATIVE);
    CHECK(append(writer, 5, ATOMS) == BODHI_OK && append(writer, 6, ATOMS) == BODHI_EXISTS);
    CHECK(bodhi_writer_close(writer) == BODHI_OK);
    (void)alarm(0);
    reopen();
    CHECK(read_all(NULL) == all_frames);
    close_all();
}

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
    test_existing_frames();
    test_other_frames();
    test_damaged_copy();
    remove_home();
    return 0;
}
