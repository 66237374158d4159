/* Tests of the table of a dataset's frames: what was added, sealed or not, is found, marked, listed and counted. */
#include "segments/table.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "../check.h"
#include "../scratch.h"
#include "base/io.h"
#include "segments/frame_table.h"

enum { TOP = 100000, WORDS = TOP / 64 + 1 };

char doing[256];

static place places[TOP];
static uint32_t expected[TOP]; /* the offset by number; 0: it is not there */
static int directory;
static segment made = {.covered = UINT32_MAX, .index_at = 640, .index_inode = 3};

static uint32_t draw(uint32_t *state) {
    *state = *state * 1664525U + 1013904223U;
    return *state >> 8;
}

static size_t fill(int shape) {
    uint32_t state = (uint32_t)shape + 1;
    size_t n = 0;
    memset(expected, 0, sizeof expected);
    for (uint32_t number = 11; number < TOP; number++) {
        bool there = shape == 0   ? number < 50000
                     : shape == 1 ? number % 3 == 0
                     : shape == 2 ? draw(&state) % 2 == 0
                     : shape == 3 ? draw(&state) % 4000 == 0
                                  : number / 100 % 7 != 0 && number % 999 != 5;
        if (there) {
            places[n++] = (place){.number = number, .offset = expected[number] = number * 3, .segment = 5};
        }
    }
    return n;
}

static void check_marks(const table *t, frame_selection chosen) {
    static uint64_t words[WORDS];
    memset(words, 0, sizeof words);
    table_mark(t, &chosen, words);
    for (uint64_t turn = 0; turn < chosen.count; turn++) {
        uint64_t number = chosen.low + turn * chosen.step;
        uint64_t bit = selection_bit(&chosen, turn);
        CHECK((words[bit / 64] >> bit % 64 & 1) == (number < TOP && expected[number] != 0));
    }
    for (uint64_t bit = chosen.count; bit < (uint64_t)WORDS * 64; bit++) {
        CHECK((words[bit / 64] >> bit % 64 & 1) == 0);
    }
}

static void check_runs(const table *t, uint64_t low, uint64_t high) {
    static bodhi_run runs[TOP];
    int64_t n = table_runs(t, low, high, runs, TOP);
    uint64_t next = low;
    CHECK(n >= 0 && (n == 0 || table_runs(t, low, high, runs, n - 1) == -1));
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j < runs[i].count; j++, next++) {
            for (int64_t number = runs[i].first + j * runs[i].step; next < (uint64_t)number; next++) {
                CHECK(expected[next] == 0);
            }
            CHECK(next <= high && expected[next] != 0);
        }
    }
    for (; next <= high && next < TOP; next++) {
        CHECK(expected[next] == 0);
    }
}

static void check(const table *t) {
    static uint64_t numbers[TOP];
    size_t n = table_numbers(t, 0, numbers, TOP);
    size_t at = 0;
    for (uint64_t number = 0; number < TOP; number++) {
        copy_cursor cursor = {0};
        place copy;
        bool found = table_next_copy(t, number, &cursor, &copy);
        CHECK(found == (expected[number] != 0));
        CHECK(!found || (copy.number == number && copy.offset == expected[number] && copy.segment == 5));
        CHECK(!found || (at < n && numbers[at++] == number));
    }
    CHECK(at == n && table_living(t) == n);
    CHECK(table_numbers(t, 20000, numbers, 3) <= 3 && (n < 99 || numbers[0] >= 20000));
    check_marks(t, (frame_selection){.low = 0, .step = 1, .count = TOP});
    check_marks(t, (frame_selection){.low = 3, .step = 7, .count = TOP / 7 - 1});
    check_marks(t, (frame_selection){.low = 13, .step = 1, .count = 40000, .backwards = true});
    check_marks(t, (frame_selection){.low = 9, .step = 13, .count = 4000, .backwards = true});
    check_marks(t, (frame_selection){.low = TOP, .step = 1, .count = 64});
    check_runs(t, 0, TOP);
    check_runs(t, 777, 33333);
}

static void drop(table *t, uint32_t number) {
    place copy = {.number = number, .offset = number * 3 + 1, .segment = 5};
    CHECK(!table_kill(t, &copy, PLACE_DROPPED)); /* it lies elsewhere */
    copy.offset = number * 3;
    CHECK(table_kill(t, &copy, PLACE_DROPPED) == (expected[number] != 0) && !table_kill(t, &copy, PLACE_DROPPED));
    expected[number] = 0;
}

static sealed_run sealed(const table *t) {
    size_t n;
    segment opened = {.key = made.key};
    sealed_run run;
    place *collected = table_collect(t, 5, &n);
    CHECK(collected != NULL && sealed_write(directory, &made, collected, n));
    free(collected);
    memcpy(opened.name, made.name, SEGMENT_NAME);
    CHECK(sealed_open(directory, &opened, 5, UINT32_MAX, &run) && run.n == n && opened.sealed == n);
    CHECK(opened.covered == UINT32_MAX && opened.index_at == 640 && opened.index_inode == 3);
    return run;
}

/* In memory, sealed, and sealed again after some were dropped. */
static void test_shapes(void) {
    for (int shape = 0; shape < 5; shape++) {
        table t = {0};
        size_t n = fill(shape);
        for (size_t at = 0; at < n; at += 8) {
            size_t batch = at + 8 < n ? 8 : n - at;
            CHECK(table_add(&t, places + at, batch));
        }
        for (int turn = 0; turn < 3; turn++) {
            check(&t);
            sealed_run run = sealed(&t);
            CHECK(table_add_run(&t, &run));
            table_remove(&t, 5);
            for (uint32_t number = 11 + (uint32_t)turn; number < TOP; number += 4999) {
                drop(&t, number);
            }
        }
        check(&t);
        table_forget_segment(&t, 5);
        CHECK(table_living(&t) == 0);
        table_free(&t);
    }
}

/* Copies in memory, out of order, and in a run; the later of two in one segment is sealed, and none that is bad. */
static void test_copies(void) {
    table t = {0};
    memset(expected, 0, sizeof expected);
    for (uint32_t i = 0; i < 20000; i++) {
        place copy = {.number = (uint64_t)i * 7919 % 10007, .offset = i + 1, .segment = 5};
        CHECK(table_add(&t, &copy, 1));
    }
    CHECK(table_living(&t) == 10007);
    copy_cursor at = {0};
    place copy;
    size_t copies = 0;
    while (table_next_copy(&t, 5, &at, &copy)) {
        CHECK(copy.number == 5);
        copies++;
    }
    CHECK(copies == 2);
    sealed_run run = sealed(&t);
    CHECK(run.n == 10007 && table_add_run(&t, &run));
    uint32_t latest = 0;
    at = (copy_cursor){0};
    for (copies = 0; table_next_copy(&t, 5, &at, &copy); copies++) {
        latest = copy.offset > latest ? copy.offset : latest;
    }
    CHECK(copies == 3 && copy.offset == latest && latest > 10007);
    size_t n;
    CHECK(table_kill(&t, &copy, PLACE_PASSED_OVER) && table_collect(&t, 5, &n) == NULL);
    table_free(&t);
}

/* A table that is damaged anywhere, cut, of another segment, or of more than there is, is none. */
static void test_damage(void) {
    table t = {0};
    sealed_run run;
    char name[SEGMENT_NAME];
    CHECK(table_add(&t, places, fill(3)));
    sealed_run whole = sealed(&t);
    sealed_name(&made, name);
    segment opened = made;
    CHECK(!sealed_open(directory, &opened, 5, UINT32_MAX - 1, &run));
    opened.key.generation++;
    CHECK(!sealed_open(directory, &opened, 5, UINT32_MAX, &run));
    opened.key.generation--;
    int fd = io_open(directory, name, O_RDWR);
    for (uint64_t i = 0; i < whole.bytes; i += i < 128 ? 1 : 101) {
        unsigned char byte;
        CHECK(io_read(fd, &byte, 1, i, READ_ANY) == 1);
        byte ^= 0x40;
        CHECK(io_write(fd, &byte, 1, i) && !sealed_open(directory, &opened, 5, UINT32_MAX, &run));
        byte ^= 0x40;
        CHECK(io_write(fd, &byte, 1, i));
    }
    CHECK(sealed_open(directory, &opened, 5, UINT32_MAX, &run));
    run_close(&run);
    CHECK(io_truncate(fd, whole.bytes - 24) && !sealed_open(directory, &opened, 5, UINT32_MAX, &run));
    sealed_unlink_stale(directory, &made, UINT32_MAX);
    CHECK(faccessat(directory, name, F_OK, 0) == 0);
    sealed_unlink_stale(directory, &made, UINT32_MAX - 1);
    CHECK(faccessat(directory, name, F_OK, 0) != 0);
    io_drop(fd);
    run_close(&whole);
    table_free(&t);
}

int main(void) {
    char home[64];
    CHECK(make_scratch(home, sizeof home, "/tmp"));
    directory = io_open(AT_FDCWD, home, O_RDONLY | O_DIRECTORY);
    segment_name(&made, 0, 7);
    test_shapes();
    test_copies();
    test_damage();
    io_drop(directory);
    remove_all(home);
    return 0;
}
