/* Dropped frames: tombstones, in whatever order they are read, copies, marks. */
#include "sample.h"

static void test_dropping(void) {
    begin_both("dropped frames, and marks", 3, 0);
    const int64_t numbers[2] = {4, 7};
    uint64_t words[2] = {0};
    drop_frames(run, numbers, 2);
    for (int again = 0; again < 2; again++) {
        words[0] = words[1] = 0;
        CHECK(bodhi_dataset_mark(run, 0, 1, FRAMES, words, words + 1) == BODHI_OK);
        CHECK(words[0] == (all_frames & ~(UINT64_C(1) << 4 | UINT64_C(1) << 7)) && words[1] == 7);
        CHECK(place_of(4).found == 0 && place_of(5).found == 1);
        reopen();
    }
    words[0] = words[1] = 0;
    CHECK(bodhi_dataset_mark(run, 5, -1, 6, words, words + 1) == BODHI_OK);
    CHECK(words[0] == 0x3D && words[1] == 0x38);
    CHECK(read_all(NULL) == (all_frames & ~(UINT64_C(1) << 4 | UINT64_C(1) << 7)));
    close_all();
}

static void test_refused_marks(void) {
    begin("marks that cannot be");
    const int64_t wrong[][3] = {{-1, 1, 1}, {0, 0, 1}, {0, 1, -1}, {5, -1, 7}, {INT64_MAX, 1, 2}, {1, INT64_MAX, 3}};
    uint64_t words[2] = {0};
    for (size_t i = 0; i < LENGTH(wrong); i++) {
        CHECK(bodhi_dataset_mark(run, wrong[i][0], wrong[i][1], wrong[i][2], words, words + 1) == BODHI_ERROR_ARGUMENT);
    }
    CHECK(bodhi_dataset_mark(NULL, 0, 1, 1, words, words) == BODHI_ERROR_ARGUMENT);
    CHECK(bodhi_dataset_mark(run, 0, 1, 1, NULL, words) == BODHI_ERROR_ARGUMENT);
    CHECK(bodhi_dataset_mark(run, 0, 1, 0, NULL, NULL) == BODHI_OK);
    CHECK((words[0] | words[1]) == 0);
    close_all();
}

static ssize_t descending_getrandom(void *buffer, size_t size, unsigned flags) {
    static unsigned char next = 0xF0;
    (void)flags;
    memset(buffer, next, size);
    next = (unsigned char)(next - 8);
    return (ssize_t)size;
}

/* A tombstone that is read before what it drops; and one of which only the record is left. */
static void test_early_tombstones(void) {
    const int64_t numbers[2] = {2, 3};
    begin_empty("tombstones that come early");
    bodhi_io.getrandom = descending_getrandom; /* a later segment is listed before an earlier one */
    bodhi_writer *writer = open_writer(BODHI_NATIVE);
    append_frames(writer, 0, 5);
    CHECK(bodhi_flush(writer, 0) == BODHI_OK);
    drop_frames(run, numbers, 2);
    CHECK(bodhi_writer_close(writer) == BODHI_OK && count_files('n') == 4);
    reopen();
    CHECK(place_of(2).found == 0 && place_of(3).found == 0 && is_there(4));
    while (*file_of('n', ".idx") != '\0') {
        CHECK(unlink(file_of('n', ".idx")) == 0);
    }
    reopen();
    CHECK(place_of(2).found == 0 && place_of(3).found == 0 && is_there(4));
    close_all();
}

/* Of two copies, which two writers that did not know of each other made, both are dropped. */
static void test_dropping_copies(void) {
    begin("copies are dropped together");
    bodhi_writer *writers[2];
    int64_t number = 50;
    bodhi_dataset *second = open_again(0);
    writers[0] = open_writer(BODHI_NATIVE);
    CHECK(bodhi_writer_open(second, BODHI_NATIVE, NULL, &writers[1]) == BODHI_OK);
    for (int i = 0; i < 2; i++) {
        CHECK(append(writers[i], number, ATOMS) == BODHI_OK);
    }
    CHECK(bodhi_writer_close(writers[0]) == BODHI_OK && bodhi_writer_close(writers[1]) == BODHI_OK);
    CHECK(count_files('n') == 4); /* nobody claims what another holds */
    bodhi_dataset_close(second);
    CHECK(bodhi_dataset_refresh(run) == BODHI_OK);
    drop_frames(run, &number, 1);
    CHECK(place_of(50).found == 0);
    reopen();
    CHECK(place_of(50).found == 0);
    close_all();
}

/* Dropping is what makes room. */
static void test_dropping_in_a_full_store(void) {
    int64_t number = 3;
    int64_t dropped;
    begin("a store beyond its quota");
    bodhi_store_set_quota(store, 1);
    CHECK(bodhi_dataset_drop(run, BODHI_NATIVE, &number, 1, &dropped) == BODHI_OK && dropped == 1 && !is_there(3));
    close_all();
}

int main(void) {
    make_home();
    test_dropping_in_a_full_store();
    test_dropping();
    test_refused_marks();
    test_dropping_copies();
    test_early_tombstones();
    remove_home();
    return 0;
}
