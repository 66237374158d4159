/* Tests of the table of a dataset's frames. */
#include "segments/table.h"

#include "../check.h"

char doing[256];

static void test_numbers(void) {
    table t = {0};
    uint64_t numbers[64];
    size_t state = 0;
    for (uint32_t batch = 0; batch < 40; batch++) {
        place places[20];
        for (uint32_t i = 0; i < 20; i++) {
            places[i] = (place){.number = (batch * 20 + i) * UINT64_C(7919) % 800, .offset = i};
        }
        CHECK(table_add(&t, places, batch % 2 == 0 ? 20 : 8));
    }
    size_t seen = 0;
    size_t n;
    for (uint64_t from = 0; (n = table_numbers(&t, from, numbers, 64)) > 0;) {
        for (size_t i = 0; i < n; i++, seen++) {
            CHECK(numbers[i] >= from && (i == 0 || numbers[i] > numbers[i - 1]));
            state = 0;
            CHECK(table_find(&t, numbers[i], &state) != NULL);
        }
        from = numbers[n - 1] + 1;
    }
    CHECK(seen == 20 * 20 + 20 * 8);
    CHECK(table_numbers(&t, 0, numbers, 2) == 2);
    state = 0;
    place *one = table_find(&t, numbers[0], &state);
    one->dead = 1;
    state = 0;
    CHECK(table_find(&t, numbers[0], &state) == one);
    CHECK(table_numbers(&t, 0, numbers + 2, 1) == 1 && numbers[2] == numbers[1]);
    table_free(&t);
}

static void test_copies(void) {
    table t = {0};
    uint64_t numbers[100];
    place *found;
    for (uint32_t i = 0; i < 20000; i++) {
        place one = {.number = (uint64_t)i * 7919 % 10007, .offset = i};
        CHECK(table_add(&t, &one, 1));
    }
    size_t state = 0;
    size_t copies = 0;
    while ((found = table_find(&t, 5, &state)) != NULL) {
        CHECK(found->number == 5);
        found->dead = copies == 0;
        copies++;
    }
    CHECK(copies == 2);
    CHECK(table_numbers(&t, 9990, numbers, 100) == 17 && numbers[0] == 9990 && numbers[16] == 10006);
    table_free(&t);
}

int main(void) {
    test_numbers();
    test_copies();
    return 0;
}
