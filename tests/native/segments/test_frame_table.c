/* Tests of sealed tables by themselves: what was laid out is what is found, whatever is asked, and damage is seen. */
#include "segments/frame_table.h"

#include "../check.h"
#include "../scratch.h"
#include "base/io.h"

enum { MOST = 70000, TOP = 200000, WORDS = TOP / 64 + 1 };

char doing[256];

static place places[MOST];
static place expected[TOP]; /* by number; length 0: it is not there */
static int directory;
static segment made = {.key = {.segment = 7, .dataset = 8, .generation = 9}, .index_at = 640, .index_inode = 3};

static uint32_t draw(uint32_t *state) {
    *state = *state * 1664525U + 1013904223U;
    return *state >> 8;
}

/* Add a frame; what lies where depends on its number alone, and `even`. */
static size_t add(size_t n, uint64_t number, bool even) {
    places[n] = (place){.number = number,
                        .offset = (uint32_t)(n == 0 ? 1 : places[n - 1].offset + places[n - 1].length),
                        .length = even ? 3 : 3 + (uint32_t)(number % 5),
                        .head = (uint16_t)(even ? 2 : 2 + number % 2),
                        .fields = even ? 1 : 0x11};
    expected[number] = places[n];
    return n + 1;
}

static size_t fill(int shape, bool even) {
    uint32_t state = (uint32_t)shape + 1;
    size_t n = 0;
    memset(expected, 0, sizeof expected);
    for (uint64_t number = 11; number < TOP && n < MOST; number++) {
        bool there = shape == 0       ? number < 50000
                     : shape == 1     ? number % 3 == 0
                     : shape == 2     ? draw(&state) % 2 == 0
                     : shape == 3     ? draw(&state) % 400 == 0
                     : shape == 4     ? number / 100 % 7 != 0 && number % 999 != 5
                     : number < 30000 ? number % 2 == 0
                                      : draw(&state) % 9 == 0;
        if (there) {
            n = add(n, number, even);
        }
    }
    return n;
}

/* Write the table of `n` places, and open it. */
static sealed *seal(size_t n, findings *found) {
    const tombstone dead[2] = {{1, 2, 3}, {4, 5, 6}};
    size_t size;
    char name[SEGMENT_NAME];
    made.covered = (uint64_t)UINT32_MAX;
    segment_name(&made, 0, 7);
    sealed_name(&made, name);
    CHECK(strcmp(name, "n-0000000000000007.tab") == 0);
    unsigned char *data = seal_layout(&made, 99, places, n, dead, 2, &size);
    CHECK(data != NULL && size % TABLE_PAGE == 0);
    int fd = io_open(directory, name, O_RDWR | O_CREAT | O_TRUNC);
    CHECK(fd >= 0 && io_write(fd, data, size, 0) && io_close(fd));
    free(data);
    sealed *t = sealed_open(directory, &made, 5, UINT32_MAX, found);
    CHECK(t != NULL && t->frames == n && t->index_at == 640 && t->index_inode == 3 && t->covered == UINT32_MAX);
    return t;
}

static bool is_expected(uint64_t number) {
    return number < TOP && expected[number].length != 0;
}

static void check_finding(sealed *t) {
    place there;
    for (uint64_t number = 0; number < TOP; number++) {
        enum sealed_answer answer = sealed_find(t, directory, number, &there);
        CHECK(answer == (is_expected(number) ? SEALED_FOUND : SEALED_ABSENT));
        const place *right = &expected[number];
        CHECK(answer == SEALED_ABSENT ||
              (there.number == number && there.segment == 5 && there.offset == right->offset &&
               there.length == right->length && there.head == right->head && there.fields == right->fields));
    }
    CHECK(sealed_find(t, directory, UINT64_MAX, &there) == SEALED_ABSENT);
}

static void check_marking(const sealed *t, frame_selection chosen) {
    static uint64_t words[WORDS];
    memset(words, 0, sizeof words);
    CHECK(sealed_mark(t, directory, &chosen, words));
    for (uint64_t turn = 0; turn < chosen.count; turn++) {
        uint64_t bit = selection_bit(&chosen, turn);
        CHECK((words[bit / 64] >> bit % 64 & 1) == is_expected(chosen.low + turn * chosen.step));
    }
    for (uint64_t bit = chosen.count; bit < (uint64_t)WORDS * 64; bit++) {
        CHECK((words[bit / 64] >> bit % 64 & 1) == 0);
    }
}

static void check_next(const sealed *t, uint64_t low) {
    uint64_t number;
    for (uint64_t from = low; sealed_next(t, from, &number); from = number + 1) {
        for (; from < number; from++) {
            CHECK(!is_expected(from));
        }
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
        for (int even = 0; even < 2; even++) {
            DOING("shape %d, even %d", shape, even);
            findings found = {0};
            size_t n = fill(shape, even != 0);
            sealed *t = seal(n, &found);
            CHECK(found.n_tombstones == 2 && found.tombstones[1].segment == 4 && found.tombstones[1].number == 6);
            CHECK(shape != 0 || even == 0 || (t->n_pages == 1 && t->n_runs == 1));
            CHECK(sealed_memory(t) < n / 2 + 10000);
            CHECK((uint64_t)t->n_pages * TABLE_PAGE < n * 17 + 20000);
            check_all(t);
            CHECK(t->page_bytes == NULL || sealed_memory(t) > TABLE_PAGE);
            for (uint64_t number = 40; number < 20000; number += number % 2 == 0 ? 1 : 778) { /* drop some */
                if (is_expected(number)) {
                    CHECK(sealed_keeps(t, directory, &expected[number]) == SEALED_FOUND);
                    CHECK(sealed_kill(t, number, number % 4 == 0) && sealed_kill(t, number, false));
                    CHECK(sealed_keeps(t, directory, &expected[number]) ==
                          (number % 4 == 0 ? SEALED_FOUND : SEALED_ABSENT));
                    expected[number].length = 0;
                    n--;
                }
            }
            CHECK(sealed_living(t) == n);
            check_all(t);
            sealed_close(t);
            findings_free(&found);
        }
    }
}

/* Places that lie evenly and differ in one thing: it is told of each. */
static void test_unlike(void) {
    for (int what = 0; what < 3; what++) {
        findings found = {0};
        memset(expected, 0, sizeof expected);
        for (uint32_t i = 0; i < 5000; i++) {
            places[i] = (place){.number = i + 11,
                                .offset = 1 + 10 * i,
                                .length = what == 0 ? 3 + i % 5 : 3,
                                .head = (uint16_t)(what == 1 ? 2 + i % 2 : 2),
                                .fields = what == 2 && i % 2 == 0 ? 0x11 : 1};
            expected[i + 11] = places[i];
        }
        sealed *t = seal(5000, &found);
        check_finding(t);
        sealed_close(t);
        findings_free(&found);
    }
}

/* Of a frame that is there twice the later copy is kept, wherever it comes. */
static void test_twice(void) {
    findings found = {0};
    place there;
    for (uint32_t i = 0; i < 200; i++) {
        places[i] = (place){.number = 199 - i, .offset = 10 + i, .length = 1, .fields = 1};
    }
    places[200] = (place){.number = 50, .offset = 999, .length = 1, .fields = 1};
    places[201] = (place){.number = 60, .offset = 2, .length = 1, .fields = 1};
    sealed *t = sealed_open(directory, &made, 0, 1, &found);
    CHECK(t == NULL); /* it covers more than the segment has */
    size_t size;
    unsigned char *data = seal_layout(&made, 1, places, 202, NULL, 0, &size);
    CHECK(data != NULL);
    int fd = io_open(directory, "n-0000000000000007.tab", O_RDWR | O_TRUNC);
    CHECK(fd >= 0 && io_write(fd, data, size, 0) && io_close(fd));
    free(data);
    t = sealed_open(directory, &made, 0, UINT32_MAX, &found);
    CHECK(t != NULL && t->frames == 200);
    CHECK(sealed_find(t, directory, 50, &there) == SEALED_FOUND && there.offset == 999);
    CHECK(sealed_find(t, directory, 60, &there) == SEALED_FOUND && there.offset == 149);
    sealed_close(t);
    findings_free(&found);
}

/* One bit of any byte: no table, or a page that is torn; never another answer. */
static void test_damage(void) {
    findings found = {0};
    static uint64_t words[WORDS];
    size_t n = fill(2, false);
    sealed_close(seal(n, &found));
    findings_free(&found);
    int fd = io_open(directory, "n-0000000000000007.tab", O_RDWR);
    struct stat status;
    CHECK(fd >= 0 && bodhi_io.fstat(fd, &status) == 0);
    for (uint64_t at = 0; at < (uint64_t)status.st_size; at += at < 500 ? 3 : 1021) {
        unsigned char byte;
        DOING("damage at %llu", (unsigned long long)at);
        CHECK(io_read(fd, &byte, 1, at, READ_ANY) == 1);
        byte ^= 8;
        CHECK(io_write(fd, &byte, 1, at));
        sealed *t = sealed_open(directory, &made, 5, UINT32_MAX, &found);
        int torn = 0;
        place there;
        for (uint64_t number = 0; t != NULL && number < TOP; number += 97) {
            enum sealed_answer answer = sealed_find(t, directory, number, &there);
            torn += answer == SEALED_TORN;
            CHECK(answer == SEALED_TORN || answer == (is_expected(number) ? SEALED_FOUND : SEALED_ABSENT));
            CHECK(answer != SEALED_FOUND || there.offset == expected[number].offset);
        }
        const frame_selection chosen = {0, 1, TOP, false};
        memset(words, 0, sizeof words);
        bool whole = t != NULL && sealed_mark(t, directory, &chosen, words);
        for (uint64_t number = 0; whole && number < TOP; number++) {
            CHECK((words[number / 64] >> number % 64 & 1) == is_expected(number));
        }
        CHECK(torn > 0 || !whole || at >= 100); /* nothing of its beginning goes unnoticed */
        sealed_close(t);
        findings_free(&found);
        byte ^= 8;
        CHECK(io_write(fd, &byte, 1, at));
    }
    segment other = made;
    other.key.generation = 10;
    CHECK(sealed_open(directory, &other, 5, UINT32_MAX, &found) == NULL);
    CHECK(io_truncate(fd, (uint64_t)status.st_size - TABLE_PAGE));
    CHECK(sealed_open(directory, &made, 5, UINT32_MAX, &found) == NULL);
    CHECK(io_close(fd));
}

/* A page of a table that was made anew meanwhile is not taken for one of this. */
static void test_made_anew(void) {
    findings found = {0};
    place there;
    size_t size;
    size_t n = fill(2, false);
    sealed *t = seal(n, &found);
    unsigned char *data = seal_layout(&made, 100, places, n, NULL, 0, &size);
    int fd = io_open(directory, "n-0000000000000007.tab", O_RDWR | O_TRUNC);
    CHECK(data != NULL && fd >= 0 && io_write(fd, data, size, 0) && io_close(fd));
    free(data);
    CHECK(sealed_find(t, directory, places[n / 2].number, &there) == SEALED_TORN);
    sealed_close(t);
    findings_free(&found);
}

/* A table goes that tells of more than its segment has. */
static void test_stale(void) {
    findings found = {0};
    char name[SEGMENT_NAME];
    sealed_close(seal(fill(1, true), &found));
    findings_free(&found);
    sealed_name(&made, name);
    sealed_unlink_stale(directory, &made, UINT32_MAX);
    CHECK(faccessat(directory, name, F_OK, 0) == 0);
    sealed_unlink_stale(directory, &made, UINT32_MAX - 1);
    CHECK(faccessat(directory, name, F_OK, 0) != 0);
}

int main(void) {
    char path[256];
    CHECK(make_scratch(path, sizeof path, "/tmp"));
    directory = io_open(AT_FDCWD, path, O_RDONLY | O_DIRECTORY);
    CHECK(directory >= 0);
    test_shapes();
    test_unlike();
    test_twice();
    test_damage();
    test_made_anew();
    test_stale();
    CHECK(io_close(directory) && rmdir(path) == 0);
    return 0;
}
