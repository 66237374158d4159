/* Segments that are evicted while others read and write; dropped frames: tombstones, in whatever order they are read,
 * copies, marks. */
#include <time.h>

#include "sample.h"
#include "syncs.h"

static void test_eviction(void) {
    begin_both("eviction beside readers and writers", FRAMES, 0);
    bodhi_reader *reader;
    bodhi_frame frame;
    bodhi_segment_facts facts[4];
    int64_t n;
    int64_t number = 3;
    CHECK(place_of(3).kind == BODHI_NATIVE);
    bodhi_stored_segment *listed = list_segments(2);
    CHECK(listed[0].kind == BODHI_ALIEN && listed[1].kind == BODHI_NATIVE);
    int before = count_descriptors();
    CHECK(bodhi_reader_open(run, &number, 1, NULL, &reader) == BODHI_OK);
    CHECK(bodhi_reader_next(reader, &frame) == BODHI_OK);
    CHECK(bodhi_store_evict(store, &listed[1]) == BODHI_ERROR_BUSY);
    bodhi_reader_close(reader);
    CHECK(count_descriptors() == before);
    bodhi_writer *writer = open_writer(BODHI_NATIVE);
    CHECK(append(writer, 100, ATOMS) == BODHI_OK);
    CHECK(append(writer, 100, ATOMS) == BODHI_EXISTS);
    CHECK(append(writer, 3, ATOMS) == BODHI_EXISTS);
    bodhi_writer *other;
    CHECK(bodhi_writer_open(run, BODHI_ALIEN, NULL, &other) == BODHI_OK);
    CHECK(append(other, 3, ATOMS) == BODHI_EXISTS && bodhi_writer_close(other) == BODHI_OK);
    CHECK(bodhi_store_evict(store, &listed[1]) == BODHI_ERROR_BUSY);
    CHECK(bodhi_dataset_segments(run, facts, 4, &n) == BODHI_OK && n == 2);
    CHECK(bodhi_writer_close(writer) == BODHI_OK);
    CHECK(bodhi_store_evict(store, &listed[1]) == BODHI_OK);
    free(listed);
    CHECK(bodhi_dataset_refresh(run) == BODHI_OK && place_of(3).kind == BODHI_ALIEN && place_of(100).found == 0);
    CHECK(bodhi_dataset_segments(run, facts, 4, &n) == BODHI_OK && n == 1);
    CHECK(read_all(NULL) == all_frames);
    close_all();
}

static bool evicts; /* the next new segment, between its making and its lock */

static int evicting_openat(int directory, const char *path, int flags, mode_t mode) {
    int fd = real.openat(directory, path, flags, mode);
    if (evicts && fd >= 0 && (flags & O_CREAT) != 0 && strstr(path, ".seg") != NULL) {
        evicts = false;
        CHECK(unlinkat(directory, path, 0) == 0);
    }
    return fd;
}

/* A segment that is evicted before its writer has locked it costs nothing but another one. */
static void test_eviction_of_a_new_segment(void) {
    begin_empty("a new segment that is evicted at once");
    bodhi_io.openat = evicting_openat;
    evicts = true;
    bodhi_writer *writer = open_writer(BODHI_ALIEN);
    for (int64_t number = 0; number < FRAMES; number++) {
        CHECK(append(writer, number, number % 4 == 3 ? 30000 : ATOMS) == BODHI_OK);
    }
    CHECK(bodhi_flush(writer, 1) == BODHI_OK && bodhi_writer_close(writer) == BODHI_OK);
    bodhi_io = real;
    CHECK(!evicts && read_all(NULL) == all_frames);
    close_all();
}

/* A segment is swept only when all its frames have been dropped: not for what this process could not read, and not for
 * what it has not seen. */
static void test_sweeping(void) {
    bodhi_writer *writer;
    bodhi_segment_facts facts[4];
    int64_t n;
    int64_t dropped;
    int64_t numbers[FRAMES];
    begin_empty("segments that are swept");
    write_frames(BODHI_NATIVE, 0, 2, 0);
    bodhi_stored_segment *listed = list_segments(1);
    CHECK(bodhi_store_sweep(store, listed) == BODHI_ERROR_BUSY);
    for (int64_t i = 0; i < FRAMES; i++) {
        numbers[i] = i;
    }
    flip(file_of('n', ".seg"), (place_of(0).offset + place_of(0).length) / 2); /* passed over, as damaged */
    drop_frames(run, numbers + 1, 1);
    CHECK(!is_there(0) && bodhi_dataset_segments(run, facts, 4, &n) == BODHI_OK && facts[0].frames == 0);
    CHECK(bodhi_store_sweep(store, listed) == BODHI_ERROR_BUSY);
    CHECK(bodhi_dataset_drop(run, BODHI_NATIVE, numbers, 1, &dropped) == BODHI_OK);
    reopen();
    CHECK(bodhi_dataset_drop(run, BODHI_NATIVE, numbers, 1, &dropped) == BODHI_OK);
    bodhi_dataset *other = open_again(0); /* of another process, which comes between looking and sweeping */
    CHECK(bodhi_writer_open(other, BODHI_NATIVE, NULL, &writer) == BODHI_OK);
    CHECK(append(writer, 5, ATOMS) == BODHI_OK);
    CHECK(bodhi_store_sweep(store, listed) == BODHI_ERROR_BUSY);
    CHECK(bodhi_writer_close(writer) == BODHI_OK);
    CHECK(bodhi_dataset_segments(run, facts, 4, &n) == BODHI_OK && facts[0].frames == 0);
    CHECK(bodhi_store_sweep(store, listed) == BODHI_ERROR_BUSY);
    CHECK(bodhi_dataset_refresh(run) == BODHI_OK && is_there(5));
    drop_frames(run, numbers + 5, 1);
    CHECK(bodhi_store_sweep(store, listed) == BODHI_OK);
    CHECK(bodhi_store_sweep(store, listed) == BODHI_ERROR_NOT_FOUND);
    bodhi_dataset_close(other);
    free(listed);
    close_all();
}

/* Records that were written, and whose writer was killed before their index entries, are there. */
static void test_sweeping_behind_the_index(void) {
    int64_t number = 0;
    begin_empty("a segment with records behind its index");
    write_frames(BODHI_NATIVE, 0, 1, 0);
    drop_frames(run, &number, 1);
    bodhi_writer *writer = open_writer(BODHI_NATIVE);
    CHECK(append(writer, 1, ATOMS) == BODHI_OK && bodhi_writer_close(writer) == BODHI_OK);
    bodhi_stored_segment *listed = list_segments(1);
    CHECK(truncate(file_of('n', ".idx"), 64 + 2 * 32) == 0); /* the entry of frame 1 */
    CHECK(bodhi_store_sweep(store, listed) == BODHI_ERROR_BUSY);
    reopen();
    CHECK(is_there(1) && !is_there(0));
    CHECK(truncate(file_of('n', ".seg"), 10) == 0 && bodhi_store_sweep(store, listed) == BODHI_OK);
    free(listed);
    close_all();
}

/* What a segment says of the frames of another holds on when it goes; and it stays where it says nothing else. */
static void test_tombstones(void) {
    const int64_t dead[2] = {2, 3};
    int64_t n;
    bodhi_segment_facts facts[4];
    for (int frames = 0; frames < 2; frames++) {
        begin_empty("a segment that says which frames of another are dropped");
        bodhi_writer *writer = open_writer(BODHI_NATIVE);
        append_frames(writer, 0, 5);
        CHECK(bodhi_flush(writer, 0) == BODHI_OK);
        uint64_t first = place_of(0).segment;
        drop_frames(run, dead, 2);
        write_frames(BODHI_NATIVE, 7, 7 + frames, 0);
        CHECK(bodhi_writer_close(writer) == BODHI_OK);
        CHECK(bodhi_dataset_segments(run, facts, 4, &n) == BODHI_OK && n == 2);
        bodhi_stored_segment *listed = list_segments(2);
        const bodhi_stored_segment *second = &listed[listed[0].id == first];
        watch_syncs();
        CHECK(bodhi_store_evict(store, second) == (frames == 0 ? BODHI_ERROR_BUSY : BODHI_OK));
        char path[256];
        (void)snprintf(path, sizeof path, "%s/%s", home, second->directory);
        CHECK(is_synced(path) == (frames == 1));
        bodhi_io = real;
        reopen();
        CHECK(bodhi_dataset_segments(run, facts, 4, &n) == BODHI_OK && n == 2);
        free(listed);
        CHECK(place_of(2).found == 0 && place_of(3).found == 0 && is_there(4) && place_of(7).found == 0);
        close_all();
    }
}

/* The dataset that was used least recently goes first, whatever it is called. */
static void test_last_used(void) {
    bodhi_dataset *other;
    bodhi_writer *writer;
    char path[400];
    begin_empty("what was used least recently");
    write_frames(BODHI_NATIVE, 0, 2, 0);
    CHECK(bodhi_dataset_open(store, "/other", NULL, 0, BODHI_CREATE, &other) == BODHI_OK);
    CHECK(bodhi_writer_open(other, BODHI_NATIVE, NULL, &writer) == BODHI_OK);
    CHECK(append(writer, 0, ATOMS) == BODHI_OK && bodhi_writer_close(writer) == BODHI_OK);
    const char *names[] = {bodhi_dataset_directory(run), bodhi_dataset_directory(other)};
    for (int newer = 0; newer < 2; newer++) {
        for (int i = 0; i < 2; i++) {
            const struct timespec used[2] = {{.tv_sec = 1000 + (i == newer)}, {.tv_sec = 1000 + (i == newer)}};
            (void)snprintf(path, sizeof path, "%s/%s/meta", home, names[i]);
            CHECK(utimensat(AT_FDCWD, path, used, 0) == 0);
        }
        bodhi_stored_segment *listed = list_segments(2);
        CHECK(strcmp(listed[0].directory, names[1 - newer]) == 0);
        free(listed);
    }
    bodhi_dataset_close(other);
    close_all();
}

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
    test_eviction();
    test_eviction_of_a_new_segment();
    test_sweeping();
    test_last_used();
    test_tombstones();
    test_sweeping_behind_the_index();
    remove_home();
    return 0;
}
