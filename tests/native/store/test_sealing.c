/* Sealing segments of a dataset: frames are found as before, whatever becomes of the tables. */
#include "sample.h"

static const uint64_t no_frames = 0;

static uint64_t marked(int kind) {
    uint64_t words[2] = {0};
    CHECK(bodhi_dataset_mark(run, 0, 1, FRAMES, words, words + 1) == BODHI_OK);
    return words[kind];
}

static uint64_t listed(int kind) {
    bodhi_run runs[FRAMES];
    int64_t count;
    uint64_t found = no_frames;
    CHECK(bodhi_dataset_runs(run, kind, 0, FRAMES, runs, FRAMES, &count) == BODHI_OK && count >= 0);
    int64_t few = count - 1;
    CHECK(count == 0 || (bodhi_dataset_runs(run, kind, 0, FRAMES, runs, few, &few) == BODHI_OK && few == -1));
    CHECK(bodhi_dataset_runs(run, kind, 0, FRAMES, runs, count, &count) == BODHI_OK);
    for (int64_t i = 0; i < count; i++) {
        for (int64_t j = 0; j < runs[i].count; j++) {
            found |= UINT64_C(1) << (runs[i].first + j * runs[i].step);
        }
    }
    return found;
}

static uint64_t numbered(int kind) {
    uint64_t numbers[4];
    int64_t count;
    uint64_t found = no_frames;
    int64_t from = 0;
    while (bodhi_dataset_numbers(run, kind, from, numbers, 4, &count) == BODHI_OK && count > 0) {
        for (int64_t i = 0; i < count; i++) {
            CHECK((int64_t)numbers[i] >= from);
            from = (int64_t)numbers[i] + 1;
            found |= UINT64_C(1) << numbers[i];
        }
    }
    return found;
}

/* Frames by segments, of which no two have one in common. */
static int64_t counted(void) {
    bodhi_segment_facts segments[8];
    int64_t n;
    int64_t frames = 0;
    CHECK(bodhi_dataset_segments(run, segments, 8, &n) == BODHI_OK && n <= 8);
    for (int64_t i = 0; i < n; i++) {
        frames += segments[i].frames;
    }
    return frames;
}

static void check_held(uint64_t natives, uint64_t aliens) {
    bodhi_facts facts;
    CHECK(bodhi_dataset_query(run, &facts) == BODHI_OK);
    CHECK(facts.native == __builtin_popcountll(natives) && facts.alien == __builtin_popcountll(aliens));
    CHECK(marked(BODHI_NATIVE) == natives && marked(BODHI_ALIEN) == aliens);
    CHECK(numbered(BODHI_NATIVE) == natives && numbered(BODHI_ALIEN) == aliens);
    CHECK(listed(BODHI_NATIVE) == natives && listed(BODHI_ALIEN) == aliens);
    CHECK(read_all(NULL) == (natives | aliens));
    CHECK(counted() == facts.native + facts.alien);
    for (int64_t number = 0; number < FRAMES; number++) {
        CHECK(place_of(number).found == (int)((natives | aliens) >> number & 1));
        CHECK(place_of(number).found == 0 || place_of(number).kind == (int)!(natives >> number & 1));
    }
}

/* The same twice, sealed, and opened again. */
static void check_often(uint64_t natives, uint64_t aliens) {
    for (int again = 0; again < 4; again++) {
        check_held(natives, aliens);
        if (again == 1) {
            CHECK(bodhi_dataset_seal(run, 1) == BODHI_OK);
        } else {
            reopen();
        }
    }
}

static bool is_sealed(char kind) {
    return *file_of(kind, ".tab") != '\0';
}

static void test_sealing(void) {
    begin_both("sealing", 3, 0);
    CHECK(!is_sealed('n') && bodhi_dataset_seal(run, 0) == BODHI_OK && !is_sealed('n')); /* too few */
    CHECK(bodhi_dataset_seal(run, 1) == BODHI_OK && is_sealed('n') && is_sealed('a'));
    for (int again = 0; again < 2; again++) {
        check_held(all_frames, 7);
        reopen();
    }
    const int64_t numbers[3] = {1, 4, 7};
    drop_frames(run, numbers, 3);
    uint64_t left = all_frames & ~(UINT64_C(1) << 1 | UINT64_C(1) << 4 | UINT64_C(1) << 7);
    check_often(left, 7);
    bodhi_writer *writer = open_writer(BODHI_NATIVE);
    CHECK(append(writer, 4, ATOMS) == BODHI_OK && append(writer, 5, ATOMS) == BODHI_EXISTS);
    CHECK(bodhi_writer_close(writer) == BODHI_OK);
    check_often(left | UINT64_C(1) << 4, 7);
    close_all();
}

/* Frames stay dropped where the segment that says so goes on, and theirs does not. */
static void test_dropped_by_another_segment(void) {
    begin_empty("frames dropped by another segment");
    bodhi_writer *writers[2];
    for (int64_t i = 0; i < 2; i++) {
        writers[i] = open_writer(BODHI_NATIVE);
        append_frames(writers[i], 5 * i, 5 * i + 5);
    }
    CHECK(bodhi_writer_close(writers[0]) == BODHI_OK && bodhi_writer_close(writers[1]) == BODHI_OK);
    CHECK(bodhi_dataset_seal(run, 1) == BODHI_OK && count_files('n') == 6);
    const int64_t numbers[2] = {2, 7};
    drop_frames(run, numbers, 2);
    write_frames(BODHI_NATIVE, 10, FRAMES, 0);
    uint64_t left = all_frames & ~(UINT64_C(1) << 2 | UINT64_C(1) << 7);
    for (int again = 0; again < 3; again++) {
        check_held(left, 0);
        if (again == 0) {
            CHECK(bodhi_dataset_seal(run, 1) == BODHI_OK);
        }
        reopen();
    }
    close_all();
}

/* Frames far apart, of which two segments have some: each is told once, by runs of any step. */
static void test_far_apart(void) {
    enum { FAR = 7 };
    const uint64_t there[FAR] = {3, 40000, 40002, 40004, 40005, 2000000, 2000064};
    begin_empty("frames far apart");
    bodhi_writer *writers[2];
    for (size_t i = 0; i < 2; i++) {
        writers[i] = open_writer(BODHI_NATIVE);
        for (size_t j = 0; j < FAR; j++) {
            CHECK(j % 3 == i || append(writers[i], (int64_t)there[j], ATOMS) == BODHI_OK);
        }
    }
    CHECK(bodhi_writer_close(writers[0]) == BODHI_OK && bodhi_writer_close(writers[1]) == BODHI_OK);
    for (int again = 0; again < 2; again++) {
        bodhi_facts facts;
        bodhi_run runs[FAR];
        uint64_t numbers[FAR + 1];
        int64_t n;
        size_t at = 0;
        CHECK(bodhi_dataset_query(run, &facts) == BODHI_OK && facts.native == FAR);
        CHECK(bodhi_dataset_numbers(run, BODHI_NATIVE, 0, numbers, FAR + 1, &n) == BODHI_OK && n == FAR);
        CHECK(memcmp(numbers, there, sizeof there) == 0);
        CHECK(bodhi_dataset_runs(run, BODHI_NATIVE, 0, 2000063, runs, FAR, &n) == BODHI_OK && n > 0);
        for (int64_t i = 0; i < n; i++) {
            for (int64_t j = 0; j < runs[i].count; j++) {
                CHECK((uint64_t)(runs[i].first + j * runs[i].step) == there[at++]);
            }
        }
        CHECK(at == FAR - 1 && bodhi_dataset_seal(run, 1) == BODHI_OK && count_files('n') == 6);
    }
    close_all();
}

/* Who seals more of the segment before a table comes to its name. */
static int overtaking_renameat(int directory, const char *from, int to, const char *name) {
    bodhi_io.renameat = real.renameat;
    write_frames(BODHI_NATIVE, 10, FRAMES, 0);
    CHECK(bodhi_dataset_seal(run, 1) == BODHI_OK && place_of(12).found == 1); /* its block is in memory */
    return real.renameat(directory, from, to, name);
}

/* Two seal one segment at a time, of which one knows less of it. */
static void test_sealing_twice(void) {
    begin_empty("sealing twice at a time");
    write_frames(BODHI_NATIVE, 0, 10, 0);
    bodhi_io.renameat = overtaking_renameat;
    CHECK(bodhi_dataset_seal(run, 1) == BODHI_OK && bodhi_io.renameat == real.renameat);
    check_held(all_frames, 0);
    reopen();
    check_held(all_frames, 0);
    close_all();
}

/* A table that is torn while it is in use, or was before, is as good as none; what was dropped stays so. */
static void test_torn(void) {
    for (int open = 0; open < 2; open++) {
        begin_both("a torn table", 3, 0);
        const int64_t numbers[1] = {6};
        drop_frames(run, numbers, 1);
        CHECK(bodhi_dataset_seal(run, 1) == BODHI_OK);
        char table[256];
        (void)snprintf(table, sizeof table, "%s", file_of('n', ".tab"));
        int64_t size = size_of(table);
        CHECK(size > 400); /* its places lie at its end */
        if (open == 0) {
            close_all();
        }
        flip(table, size - 300);
        if (open == 0) {
            open_all();
        }
        check_held(all_frames & ~(UINT64_C(1) << 6), 7);
        CHECK(bodhi_dataset_refresh(run) == BODHI_OK);
        check_held(all_frames & ~(UINT64_C(1) << 6), 7);
        flip(table, 70); /* and now its facts */
        reopen();
        check_held(all_frames & ~(UINT64_C(1) << 6), 7);
        CHECK(unlink(table) == 0);
        reopen();
        check_held(all_frames & ~(UINT64_C(1) << 6), 7);
        close_all();
    }
}

/* A copy that is damaged is passed over; that does not go into a table, which is for all. */
static void test_damaged_copy(void) {
    for (int sealed = 0; sealed < 2; sealed++) { /* when it is found damaged */
        begin_both("a damaged copy", 3, 0);
        bodhi_place at = place_of(2);
        flip(file_of('n', ".seg"), at.offset + 300);
        CHECK(sealed == 0 || bodhi_dataset_seal(run, 1) == BODHI_OK);
        CHECK(read_all(NULL) == all_frames); /* by the alien copy */
        CHECK((marked(BODHI_NATIVE) & 4) == 0 && place_of(2).kind == BODHI_ALIEN);
        CHECK(bodhi_dataset_seal(run, 1) == BODHI_OK && is_sealed('n'));
        CHECK((marked(BODHI_NATIVE) & 4) == 0 && place_of(2).kind == BODHI_ALIEN);
        reopen();
        CHECK((marked(BODHI_NATIVE) & 4) != 0);
        close_all();
    }
}

/* The table goes with its segment, and one that was left over goes, too. */
static void test_eviction(void) {
    begin_both("eviction", 3, 0);
    CHECK(bodhi_dataset_seal(run, 1) == BODHI_OK);
    char table[256];
    char copy[300];
    (void)snprintf(table, sizeof table, "%s", file_of('a', ".tab"));
    (void)snprintf(copy, sizeof copy, "%s.copy", table);
    CHECK(link(table, copy) == 0);
    reopen();
    for (int again = 0; again < 2; again++) {
        bodhi_stored_segment *segments = list_segments(2);
        CHECK(segments[0].kind == BODHI_ALIEN && bodhi_store_evict(store, &segments[0]) == BODHI_OK);
        free(segments);
        CHECK(access(table, F_OK) != 0);
        CHECK(again == 1 || rename(copy, table) == 0);
    }
    CHECK(bodhi_dataset_refresh(run) == BODHI_OK);
    check_held(all_frames, 0);
    close_all();
}

/* A sealed segment goes on: its index is read from where the table ends, and if it was cut, made anew. */
static void test_going_on(void) {
    begin_empty("going on");
    write_frames(BODHI_NATIVE, 0, 5, 0);
    CHECK(bodhi_dataset_seal(run, 1) == BODHI_OK);
    write_frames(BODHI_NATIVE, 5, 9, 0);
    CHECK(count_files('n') == 3); /* the segment, its index, its table */
    reopen();
    check_held(0x1FF, 0);
    char *index = file_of('n', ".idx");
    CHECK(truncate(index, 64 + 2 * 32) == 0); /* shorter than what the table has taken from it */
    reopen();
    check_held(0x1FF, 0);
    write_frames(BODHI_NATIVE, 9, 12, 0);
    check_held(0xFFF, 0);
    reopen();
    check_held(0xFFF, 0);
    CHECK(unlink(file_of('n', ".tab")) == 0);
    reopen();
    check_held(0xFFF, 0);
    close_all();
}

/* A table of which a power cut has lost the records, and not the table: others come to lie where it says that they are.
 */
static void test_lost_records(void) {
    begin("a table of records that are lost");
    CHECK(bodhi_dataset_seal(run, 1) == BODHI_OK && is_sealed('n'));
    bodhi_place cut = place_of(10);
    CHECK(truncate(file_of('n', ".seg"), cut.offset) == 0 && truncate(file_of('n', ".idx"), 64 + 10 * 32) == 0);
    reopen();
    bodhi_writer *writer = open_writer(BODHI_NATIVE);
    for (int64_t number = FRAMES; number-- > 10;) {
        CHECK(append(writer, number, number % 4 == 3 ? 30000 : ATOMS) == BODHI_OK);
    }
    CHECK(bodhi_flush(writer, 0) == BODHI_OK);
    bodhi_dataset *own = run; /* as if its writer were killed now */
    run = open_again(0);
    CHECK(count_files('n') > 0 && read_all(NULL) == all_frames);
    bodhi_dataset_close(run);
    run = own;
    CHECK(bodhi_writer_close(writer) == BODHI_OK);
    close_all();
}

int main(void) {
    make_home();
    test_sealing();
    test_dropped_by_another_segment();
    test_far_apart();
    test_sealing_twice();
    test_torn();
    test_damaged_copy();
    test_eviction();
    test_going_on();
    test_lost_records();
    remove_home();
    return 0;
}
