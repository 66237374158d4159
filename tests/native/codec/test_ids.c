/* Sets of atoms: told as bits and as ids that ascend by the same bytes, and put in order. */
#include <stdlib.h>
#include <string.h>

#include "../check.h"
#include "codec/id_order.h"
#include "segments/slice.h"

char doing[256] = "";

enum { ATOMS = 3000 };

static uint32_t drawn = 1;

static uint32_t draw(uint32_t below) {
    drawn = drawn * 1664525U + 1013904223U;
    return (uint32_t)(((uint64_t)drawn * below) >> 32);
}

/* A set in both forms. */
typedef struct {
    uint32_t ids[ATOMS];
    size_t n;
    uint64_t words[ATOMS / 64 + 1];
} both;

static void set_bits(both *set) {
    memset(set->words, 0, sizeof set->words);
    for (size_t i = 0; i < set->n; i++) {
        set->words[set->ids[i] / 64] |= UINT64_C(1) << set->ids[i] % 64;
    }
}

/* Runs of up to `longest` atoms, of `atoms` in all, with gaps like them. */
static void draw_set(both *set, uint32_t atoms, uint32_t longest) {
    set->n = 0;
    for (uint32_t at = draw(longest); at < atoms || set->n == 0; at += draw(longest) + 1) {
        for (uint32_t end = at + 1 + draw(longest); at < end && at < atoms; at++) {
            set->ids[set->n++] = at;
        }
        if (set->n == 0) {
            at = draw(atoms / 2 + 1);
        }
    }
    set_bits(set);
}

/* Some atoms go, some come. */
static void change(both *to, const both *from, uint32_t changes) {
    uint64_t words[ATOMS / 64 + 1];
    memcpy(words, from->words, sizeof words);
    for (uint32_t i = 0; i < changes; i++) {
        uint32_t atom = draw(ATOMS);
        words[atom / 64] ^= UINT64_C(1) << atom % 64;
    }
    if (changes % 4 == 1) { /* the last one goes, too */
        uint32_t last = from->ids[from->n - 1];
        words[last / 64] &= ~(UINT64_C(1) << last % 64);
    }
    to->n = 0;
    for (uint32_t atom = 0; atom < ATOMS; atom++) {
        if ((words[atom / 64] >> atom % 64 & 1) != 0) {
            to->ids[to->n++] = atom;
        }
    }
    set_bits(to);
}

static id_bits bits_of(const both *set) {
    return (id_bits){.words = set->words, .n_words = ATOMS / 64 + 1};
}

static void test_told_by_the_same_bytes(void) {
    static both one, other;
    id_bytes a = {0};
    id_bytes b = {0};
    id_set scratch = {0};
    for (uint32_t turn = 0; turn < 2000; turn++) {
        (void)snprintf(doing, sizeof doing, "telling set %u", turn);
        draw_set(&one, 1 + draw(ATOMS), 1 + draw(turn % 3 == 0 ? 3 : 300));
        CHECK(ids_most(one.ids, one.n) == id_bits_most(bits_of(&one)));
        CHECK(ids_write(&a, one.ids, one.n) && id_bits_write(&b, bits_of(&one), one.n));
        CHECK(a.size == b.size && memcmp(a.bytes, b.bytes, a.size) == 0);
        change(&other, &one, draw(200));
        if (other.n == 0) {
            continue;
        }
        const id_set base = {.ids = one.ids, .n = one.n};
        size_t most = id_bits_most(bits_of(&other));
        bool shorter;
        bool as_well;
        CHECK(ids_write_delta(&a, other.ids, other.n, &base, 64, most, &scratch, &shorter));
        CHECK(id_bits_write_delta(&b, bits_of(&other), bits_of(&one), 64, most, &as_well) && shorter == as_well);
        CHECK(!shorter || (a.size == b.size && memcmp(a.bytes, b.bytes, a.size) == 0));
    }
    free(a.bytes);
    free(b.bytes);
    id_set_free(&scratch);
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
        (void)snprintf(doing, sizeof doing, "order %u: %zu of %lld", turn, n, (long long)n_atoms);
        for (size_t i = 0; i < n; i++) { /* one of each `step` atoms, the last of all among them */
            ids[i] = i + 1 == n ? n_atoms - 1 : (int64_t)i * step + draw((uint32_t)step);
        }
        for (size_t i = n - 1; i > 0 && turn % 5 != 0; i--) {
            size_t j = draw((uint32_t)i + 1);
            int64_t swapped = ids[i];
            ids[i] = ids[j];
            ids[j] = swapped;
        }
        for (int again = 0; again < 4; again++) { /* the ids are those of the time before, but for the last time */
            int64_t wrong;
            if (again == 3) {
                size_t at = n > ID_ORDER_FIRST + 1 ? n - 2 : 0; /* they begin alike */
                int64_t swapped = ids[at];
                ids[at] = ids[n - 1];
                ids[n - 1] = swapped;
            }
            for (size_t i = 0; i < n; i++) {
                rows[3 * i] = (float)ids[i];
                rows[3 * i + 1] = rows[3 * i + 2] = (float)again;
            }
            CHECK(ids_sort(&order, ids, n, n_atoms, &wrong) == IDS_SORTED && order.n == n);
            const uint32_t *sorted = id_order_ids(&order);
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

/* Only what lies before a record can have told its atoms. */
static void test_base_comes_before(void) {
    static both one, other;
    uint32_t ids[ATOMS];
    id_bytes told = {0};
    id_set scratch = {0};
    bool shorter;
    segment_key key = {.segment = 1};
    (void)snprintf(doing, sizeof doing, "a base that comes later");
    draw_set(&one, ATOMS, 3);
    change(&other, &one, 5);
    slice_base base = {.of = key, .offset = 128};
    CHECK(id_set_copy(&base.set, one.ids, one.n));
    CHECK(ids_write_delta(&told, other.ids, other.n, &base.set, 128, SIZE_MAX, &scratch, &shorter) && shorter);
    record_header header = {.offset = 192, .n_atoms = (uint32_t)other.n};
    CHECK(slice_ids(-1, &key, &header, told.bytes, told.size, &base, ids));
    CHECK(memcmp(ids, other.ids, other.n * sizeof *ids) == 0);
    for (header.offset = 0; header.offset <= 128; header.offset += 64) {
        CHECK(!slice_ids(-1, &key, &header, told.bytes, told.size, &base, ids));
    }
    free(told.bytes);
    id_set_free(&scratch);
    slice_base_free(&base);
}

/* Bytes that tell more ids than were asked for, or such as there are none. */
static void test_damaged(void) {
    uint32_t ids[80];
    unsigned char bytes[IDS_HEAD + 16] = {0};
    id_bytes out = {.bytes = bytes};
    const uint32_t runs[][2] = {{0, 7}, {UINT32_MAX - 1, 2}, {UINT32_MAX, 1}, {0, 2}};
    (void)snprintf(doing, sizeof doing, "damaged bytes");
    for (int i = 0; i < 4; i++) {
        ids_write_head(&out, IDS_RUNS, 3, 0);
        unsigned char *end = ids_varint_write(ids_varint_write(bytes + IDS_HEAD, runs[i][0]), runs[i][1]);
        CHECK(ids_read(bytes, ids_whole_units((size_t)(end - bytes)), NULL, ids, 3) == (i == 3));
    }
    for (int i = 0; i < 3; i++) {
        ids_write_head(&out, IDS_BITS, 3, i == 1 ? UINT32_MAX - 1 : UINT32_MAX - 2);
        memset(bytes + IDS_HEAD, 0, 8);
        bytes[IDS_HEAD] = i == 0 ? 0xFF : 7;
        CHECK(ids_read(bytes, IDS_HEAD + 8, NULL, ids, 3) == (i == 2));
    }
    ids_write_head(&out, IDS_BITS, 3, 0);
    bytes[IDS_HEAD] = 0xF;
    ids[3] = 77; /* behind the room that there is */
    CHECK(!ids_read(bytes, IDS_HEAD + 8, NULL, ids, 3) && ids[3] == 77);
}

int main(void) {
    test_damaged();
    test_told_by_the_same_bytes();
    test_order();
    test_base_comes_before();
    return 0;
}
