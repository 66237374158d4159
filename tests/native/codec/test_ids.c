/* Sets of atoms: told as bytes and taken from them, and put in order. */
#include "../check.h"
#include "../draw.h"
#include "base/bytes.h"
#include "codec/ids.h"

char doing[256] = "";

enum { ATOMS = 3000 };

/* Runs of up to `longest` atoms with gaps like them; returns how many. */
static size_t draw_set(uint32_t *ids, uint32_t longest) {
    size_t n = 0;
    for (uint32_t at = draw(longest); at < ATOMS; at += draw(longest) + 1) {
        for (uint32_t end = at + 1 + draw(longest); at < end && at < ATOMS; at++) {
            ids[n++] = at;
        }
    }
    return n;
}

static void test_told_and_taken(void) {
    uint32_t ids[ATOMS];
    uint32_t again[ATOMS];
    id_bytes told = {0};
    bool coded[IDS_RAW + 1] = {false};
    for (uint32_t turn = 0; turn < 500; turn++) {
        DOING("telling set %u", turn);
        size_t n = draw_set(ids, 1 + draw(turn % 3 == 0 ? 3 : 300));
        n = turn % 4 == 0 && n > 1000 ? 1000 : n;
        for (size_t i = 0; turn % 4 == 0 && i < n; i++) { /* so far apart that runs would be longer */
            ids[i] = (uint32_t)i << 22;
        }
        CHECK(ids_write(&told, ids, n) && told.size <= IDS_HEAD + n * sizeof *ids && told.size % IDS_UNIT == 0);
        CHECK(ids_read(told.bytes, told.size, again, n) && memcmp(ids, again, n * sizeof *ids) == 0);
        CHECK(!ids_read(told.bytes, told.size, again, n - 1) && !ids_read(told.bytes, told.size - 4, again, n));
        coded[told.bytes[0]] = true;
    }
    CHECK(coded[IDS_RUNS] && coded[IDS_RAW]);
    free(told.bytes);
}

static void test_order(void) {
    static int64_t ids[ATOMS];
    static float rows[3 * ATOMS], out[3 * ATOMS];
    id_order order = {0};
    for (uint32_t turn = 0; turn < 3000; turn++) {
        const int64_t atoms[] = {1, 63, 64, 65, 128, ATOMS, 100000, INT64_C(1) << 25};
        int64_t n_atoms = atoms[draw(8)];
        size_t n = 1 + draw((uint32_t)(n_atoms < ATOMS ? n_atoms : turn % 2 == 0 ? 100 : ATOMS));
        int64_t step = n_atoms / (int64_t)n;
        DOING("order %u: %zu of %lld", turn, n, (long long)n_atoms);
        for (size_t i = 0; i < n; i++) { /* one of each `step` atoms, the last of all among them */
            ids[i] = i + 1 == n ? n_atoms - 1 : (int64_t)i * step + draw((uint32_t)step);
        }
        if (turn % 5 != 0) {
            shuffle(ids, n);
        }
        for (int again = 0; again < 4; again++) { /* the ids are those of the time before, but for the last time */
            int64_t wrong;
            if (again == 3) {
                size_t at = n > 1 ? n - 2 : 0; /* they begin alike */
                int64_t swapped = ids[at];
                ids[at] = ids[n - 1];
                ids[n - 1] = swapped;
            }
            for (size_t i = 0; i < n; i++) {
                rows[3 * i] = (float)ids[i];
                rows[3 * i + 1] = rows[3 * i + 2] = (float)again;
            }
            CHECK(ids_sort(&order, ids, n, n_atoms, &wrong) == IDS_SORTED && order.n == n);
            const uint32_t *sorted = order.sorted;
            id_order_rows(&order, rows, out);
            for (size_t i = 0; i < n; i++) {
                CHECK((i == 0 || sorted[i] > sorted[i - 1]) && out[3 * i] == (float)sorted[i]);
                CHECK(out[3 * i + 1] == (float)again && out[3 * i + 2] == (float)again);
            }
        }
        int64_t wrong = -7;
        int64_t kept = ids[n / 2];
        const int64_t bad[] = {n_atoms, -1, INT64_MAX, INT64_MIN, n_atoms + 1};
        ids[n / 2] = bad[turn % 5];
        CHECK(ids_sort(&order, ids, n, n_atoms, &wrong) == IDS_WRONG && wrong == bad[turn % 5]);
        if (n > 1) {
            ids[n / 2] = ids[n / 2 - 1];
            CHECK(ids_sort(&order, ids, n, n_atoms, &wrong) == IDS_WRONG && wrong == ids[n / 2]);
        }
        ids[n / 2] = kept;
        CHECK(ids_sort(&order, ids, n, n_atoms, &wrong) == IDS_SORTED);
    }
    id_order_free(&order);
}

/* Bytes that tell more ids than were asked for, or such as there are none. */
static void test_damaged(void) {
    uint32_t ids[4] = {0};
    unsigned char bytes[IDS_HEAD + 16] = {[4] = 3};
    const unsigned char runs[][6] = {
        {0, 7}, {0xFE, 0xFF, 0xFF, 0xFF, 0x0F, 2}, {0xFF, 0xFF, 0xFF, 0xFF, 0x0F, 1}, {0, 2}};
    DOING("damaged bytes");
    bytes[0] = IDS_RUNS;
    for (int i = 0; i < 4; i++) {
        memcpy(bytes + IDS_HEAD, runs[i], sizeof runs[i]);
        CHECK(ids_read(bytes, IDS_HEAD + 8, ids, 3) == (i == 3));
    }
    bytes[0] = IDS_RAW;
    for (uint32_t last = 0; last < 4; last++) {
        put32(bytes + IDS_HEAD, 1);
        put32(bytes + IDS_HEAD + 4, 2);
        put32(bytes + IDS_HEAD + 8, last);
        CHECK(ids_read(bytes, IDS_HEAD + 12, ids, 3) == (last == 3));
    }
    ids[3] = 77; /* behind the room that there is */
    CHECK(!ids_read(bytes, IDS_HEAD + 16, ids, 3) && ids[3] == 77);
}

int main(void) {
    test_damaged();
    test_told_and_taken();
    test_order();
    return 0;
}
