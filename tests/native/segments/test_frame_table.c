/* Tests of tables of frames, in memory and sealed: what was laid out is what is found, whatever is asked, and damage is
 * seen. */
#include "segments/frame_table.h"

#include <time.h>

#include "../check.h"
#include "../draw.h"
#include "../scratch.h"
#include "base/io.h"
#include "segments/table.h"

enum { MOST = 70000, TOP = 200000, WORDS = TOP / 64 + 1 };

char doing[256];

static place places[MOST];
static place expected[TOP]; /* by number; length 0: it is not there */
static int directory;
static segment made = {.key = {.segment = 7, .dataset = 8, .generation = 9}, .index_at = 640, .index_inode = 3};

/* Add a frame; what lies where depends on its number alone. */
static size_t add(size_t n, uint64_t number) {
    places[n] = (place){.number = number,
                        .offset = (uint32_t)(n == 0 ? 1 : places[n - 1].offset + places[n - 1].length),
                        .length = 3 + (uint32_t)(number % 5),
                        .head = (uint16_t)(2 + number % 2),
                        .fields = 0x11};
    expected[number] = places[n];
    return n + 1;
}

static size_t fill(int shape) {
    size_t n = 0;
    drawn = (uint32_t)shape + 1;
    memset(expected, 0, sizeof expected);
    for (uint64_t number = 11; number < TOP && n < MOST; number++) {
        bool there = shape == 0       ? number < 50000
                     : shape == 1     ? number % 3 == 0
                     : shape == 2     ? draw(2) == 0
                     : shape == 3     ? draw(400) == 0
                     : shape == 4     ? number / 100 % 7 != 0 && number % 999 != 5
                     : number < 30000 ? number % 2 == 0
                                      : draw(9) == 0;
        if (there) {
            n = add(n, number);
        }
    }
    return n;
}

static const tombstone tombstones[2] = {{1, 2, 3}, {4, 5, 6}};
static const char name[] = "n-0000000000000007.tab";

/* Write the table of `n` places and both tombstones, and open it. */
static sealed *seal(size_t n) {
    findings out = {.places = places, .n_places = n, .tombstones = (tombstone *)(uintptr_t)tombstones};
    findings in = {0};
    char its_name[SEGMENT_NAME];
    out.n_tombstones = 2;
    made.covered = (uint64_t)UINT32_MAX;
    segment_name(&made, 0, 7);
    sealed_name(&made, its_name);
    CHECK(strcmp(its_name, name) == 0);
    uint64_t bytes = sealed_bytes(&out);
    struct stat status;
    CHECK(sealed_write(directory, &made, &out) && fstatat(directory, name, &status, 0) == 0 &&
          (uint64_t)status.st_size <= bytes);
    sealed *t = sealed_open(directory, &made, 5, UINT32_MAX, &in);
    CHECK(t != NULL && t->facts.frames == out.n_places && t->facts.covered == UINT32_MAX);
    CHECK(t->facts.index_at == 640 && t->facts.index_inode == 3);
    CHECK(in.n_tombstones == 2 && in.tombstones[1].segment == 4 && in.tombstones[1].number == 6);
    findings_free(&in);
    return t;
}

static bool is_expected(uint64_t number) {
    return number < TOP && expected[number].length != 0;
}

static void check_finding(sealed *t) {
    for (uint64_t number = 0; number < TOP; number++) {
        const place *there = sealed_find(t, directory, number);
        const place *right = &expected[number];
        CHECK((there != NULL && !there->dead) == is_expected(number));
        CHECK(!is_expected(number) ||
              (there->number == number && there->segment == 5 && there->offset == right->offset &&
               there->length == right->length && there->head == right->head && there->fields == right->fields));
    }
    CHECK(sealed_find(t, directory, UINT64_MAX) == NULL && !t->torn);
}

static void check_marking(sealed *t, frame_selection chosen) {
    static uint64_t words[WORDS];
    memset(words, 0, sizeof words);
    sealed_mark(t, directory, &chosen, words);
    for (uint64_t turn = 0; turn < chosen.count; turn++) {
        uint64_t bit = selection_bit(&chosen, turn);
        CHECK((words[bit / 64] >> bit % 64 & 1) == is_expected(chosen.low + turn * chosen.step));
    }
    for (uint64_t bit = chosen.count; bit < (uint64_t)WORDS * 64; bit++) {
        CHECK((words[bit / 64] >> bit % 64 & 1) == 0);
    }
}

static void check_next(sealed *t, uint64_t from) {
    const place *next;
    for (; (next = sealed_next(t, directory, from)) != NULL; from = next->number + 1) {
        CHECK(next->number >= from);
        for (; from < next->number; from++) {
            CHECK(!is_expected(from));
        }
    }
    for (; from < TOP; from++) {
        CHECK(!is_expected(from));
    }
}

static void check_all(sealed *t) {
    check_finding(t);
    const frame_selection chosen[] = {{0, 1, TOP, false},     {17, 1, 70001, false}, {64, 1, 64, true},
                                      {5, 7, 28000, false},   {3, 1, TOP - 3, true}, {1, 90, 2000, true},
                                      {150000, 1, 30, false}, {11, 3, 60000, false}};
    for (size_t i = 0; i < LENGTH(chosen); i++) {
        check_marking(t, chosen[i]);
    }
    check_next(t, 0);
    check_next(t, 4097);
}

static void test_shapes(void) {
    for (int shape = 0; shape < 6; shape++) {
        DOING("shape %d", shape);
        size_t n = fill(shape);
        sealed *t = seal(n);
        check_all(t);
        for (uint64_t number = 40; number < 20000; number += number % 2 == 0 ? 1 : 778) { /* drop some */
            if (is_expected(number)) {
                CHECK(!sealed_find(t, directory, number)->dead);
                CHECK(sealed_kill(t, number) && sealed_kill(t, number));
                CHECK(sealed_find(t, directory, number)->dead);
                expected[number].length = 0;
                n--;
            }
        }
        CHECK(sealed_living(t) == n);
        check_all(t);
        sealed_close(t);
    }
}

/* Frames that follow one another are marked without a look into the file. */
static void test_without_file(void) {
    sealed *t = seal(fill(0));
    CHECK(unlinkat(directory, name, 0) == 0);
    check_marking(t, (frame_selection){0, 1, TOP, false});
    check_marking(t, (frame_selection){5, 7, 28000, true});
    CHECK(!t->torn && sealed_find(t, directory, 451) == NULL && t->torn);
    sealed_close(t);
}

/* Of a frame that is there twice the later copy is kept, wherever it comes. */
static void test_twice(void) {
    for (uint32_t i = 0; i < 200; i++) {
        places[i] = (place){.number = 199 - i, .offset = 10 + i, .length = 1, .fields = 1};
    }
    places[200] = (place){.number = 50, .offset = 999, .length = 1, .fields = 1};
    places[201] = (place){.number = 60, .offset = 2, .length = 1, .fields = 1};
    sealed *t = seal(202);
    CHECK(t->facts.frames == 200);
    CHECK(sealed_find(t, directory, 50)->offset == 999 && sealed_find(t, directory, 60)->offset == 149);
    sealed_close(t);
}

/* One bit of any byte: no table, or one that is seen to be torn; never another answer. */
static void test_damage(void) {
    findings found = {0};
    static uint64_t words[WORDS];
    const frame_selection chosen = {0, 1, TOP, false};
    sealed_close(seal(fill(2)));
    int fd = io_open(directory, name, O_RDWR);
    struct stat status;
    CHECK(fd >= 0 && bodhi_io.fstat(fd, &status) == 0);
    for (uint64_t at = 0; at < (uint64_t)status.st_size; at += at < 500 ? 3 : 1021) {
        unsigned char byte;
        DOING("damage at %llu", (unsigned long long)at);
        CHECK(io_read(fd, &byte, 1, at, READ_ANY) == 1);
        byte ^= 8;
        CHECK(io_write(fd, &byte, 1, at));
        sealed *t = sealed_open(directory, &made, 5, UINT32_MAX, &found);
        for (uint64_t number = 0; t != NULL && number < TOP; number += 97) {
            const place *there = sealed_find(t, directory, number);
            CHECK(there == NULL || (is_expected(number) && there->offset == expected[number].offset));
            CHECK(there != NULL || !is_expected(number) || t->torn);
        }
        memset(words, 0, sizeof words);
        if (t != NULL) {
            sealed_mark(t, directory, &chosen, words);
        }
        for (uint64_t number = 0; t != NULL && number < TOP; number++) {
            bool is_marked = (words[number / 64] >> number % 64 & 1) != 0;
            CHECK(is_expected(number) ? is_marked || t->torn : !is_marked);
        }
        CHECK(t == NULL || t->torn); /* no byte goes unnoticed */
        sealed_close(t);
        byte ^= 8;
        CHECK(io_write(fd, &byte, 1, at));
    }
    found.n_tombstones = 0;
    segment other = made;
    other.key.generation = 10;
    CHECK(sealed_open(directory, &other, 5, UINT32_MAX, &found) == NULL);
    CHECK(sealed_open(directory, &made, 5, UINT32_MAX - 1, &found) == NULL); /* it covers more than the segment has */
    CHECK(io_truncate(fd, (uint64_t)status.st_size - PLACE_BYTES));
    CHECK(sealed_open(directory, &made, 5, UINT32_MAX, &found) == NULL && found.n_tombstones == 0);
    CHECK(io_close(fd));
    findings_free(&found);
}

/* A block of a table that was made anew meanwhile is not taken for one of this. */
static void test_made_anew(void) {
    bool any = false;
    size_t n = fill(2);
    sealed *t = seal(n);
    t->any_torn = &any;
    sealed_close(seal(n - 1000));
    CHECK(sealed_find(t, directory, places[n / 2].number) == NULL && t->torn && any);
    sealed_close(t);
}

/* A table goes that tells of more than its segment has. */
static void test_stale(void) {
    sealed_close(seal(fill(1)));
    sealed_unlink_stale(directory, &made, UINT32_MAX);
    CHECK(faccessat(directory, name, F_OK, 0) == 0);
    sealed_unlink_stale(directory, &made, UINT32_MAX - 1);
    CHECK(faccessat(directory, name, F_OK, 0) != 0);
}

/* Frames that come in any order, each of them twice; some are dead. */
static void test_unsealed(void) {
    enum { N = 8000, AT_ONCE = 20 };
    table t = {0};
    uint64_t number = 0;
    for (uint32_t first = 0; first < 2 * N; first += AT_ONCE) {
        place added[AT_ONCE];
        for (uint32_t i = 0; i < AT_ONCE; i++) {
            added[i] = (place){.number = (first + i) * UINT64_C(7919) % N, .offset = first + i};
        }
        CHECK(table_add(&t, added, AT_ONCE));
    }
    for (uint64_t next = 0; next < N; next++) {
        size_t state = 0;
        place *copy = table_find(&t, next, &state);
        place *second = table_find(&t, next, &state);
        CHECK(table_next(&t, next, &number) && number == next);
        CHECK(copy != NULL && second != NULL && copy->number == next && second->number == next);
        CHECK(second->offset == copy->offset + N);
        CHECK(table_find(&t, next, &state) == NULL);
        copy->dead = second->dead = next < 3;
    }
    CHECK(table_next(&t, 0, &number) && number == 3 && !table_next(&t, N, &number));
    const frame_selection all = {0, 1, N, false};
    static uint64_t words[N / 64];
    table_mark(&t, &all, words);
    CHECK(words[0] == ~UINT64_C(7) && words[1] == ~UINT64_C(0) && words[N / 64 - 1] == ~UINT64_C(0));
    table_free(&t);
}

/* Each comes before all others; to move these each time would take time that grows with the square. */
static void test_many_out_of_order(void) {
    enum { N = 100000 };
    table t = {0};
    clock_t begin = clock();
    clock_t quarter = 0;
    for (uint64_t i = 1; i <= N; i++) {
        place added = {.number = N - i, .segment = i == 1};
        CHECK(table_add(&t, &added, 1));
        quarter = i == N / 4 ? clock() - begin : quarter;
    }
    CHECK(clock() - begin < 9 * quarter);
    CHECK(table_remove(&t, 1, UINT32_MAX) == 1);
    for (uint64_t number = 0; number < N; number++) {
        size_t state = 0;
        CHECK((table_find(&t, number, &state) != NULL) == (number < N - 1));
    }
    table_free(&t);
}

int main(void) {
    char path[256];
    test_unsealed();
    test_many_out_of_order();
    CHECK(make_scratch(path, sizeof path, "/tmp"));
    directory = io_open(AT_FDCWD, path, O_RDONLY | O_DIRECTORY);
    CHECK(directory >= 0);
    test_shapes();
    test_without_file();
    test_twice();
    test_damage();
    test_made_anew();
    test_stale();
    CHECK(io_close(directory) && rmdir(path) == 0);
    return 0;
}
