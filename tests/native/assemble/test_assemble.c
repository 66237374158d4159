/* Tests of putting frames together from slices: whatever is lost, doubled or changed of them, a frame is there just
 * when its slices cover its atoms once, and then it is right; from and to memory of just the right size. */
#include "../draw.h"
#include "../store/sample.h"
#include "assemble/gather.h"

enum { MANY = 97, RANKS = 3, ROUNDS = 4, OF_ROUND = 6, TURNS = 4000 };

/* --- Slices ------------------------------------------------------------------------------------------------------ */

typedef struct {
    bodhi_frame frame;
    float vectors[3][MANY * 3], box[6];
    uint32_t ids[MANY + 1];
} slice;

static float value(int64_t number, uint32_t atom, int field, int axis) {
    return (float)(number * 1000 + atom) + (float)field / 4 + (float)axis / 16;
}

static void fill(slice *s) {
    for (int64_t i = 0; i < s->frame.n_atoms; i++) {
        for (int k = 0; k < 9; k++) {
            s->vectors[k / 3][i * 3 + k % 3] = value(s->frame.number, s->ids[i], k / 3, k % 3);
        }
    }
}

/* The atoms of a rank, of `n_atoms` that are shared out as `owner` says. */
static void make(slice *s, int64_t number, uint32_t n_atoms, const uint32_t *owner, uint32_t rank, unsigned has) {
    memset(s, 0, sizeof *s);
    s->frame = (bodhi_frame){.number = number,
                             .time = (double)number / 2,
                             .positions = s->vectors[0],
                             .velocities = (has & 1U) != 0 ? s->vectors[1] : NULL,
                             .forces = (has & 2U) != 0 ? s->vectors[2] : NULL,
                             .box = (has & 4U) != 0 ? s->box : NULL,
                             .ids = s->ids};
    for (uint32_t atom = 0; atom < n_atoms; atom++) {
        if (owner[atom] == rank) {
            s->ids[s->frame.n_atoms++] = atom;
        }
    }
    for (int i = 0; i < 6; i++) {
        s->box[i] = (float)(i + 10);
    }
    fill(s);
}

static void check_frame(const bodhi_frame *frame, int64_t number, unsigned has) {
    CHECK(frame->number == number && frame->n_atoms == MANY && frame->time == (double)number / 2);
    CHECK((frame->velocities != NULL) == ((has & 1U) != 0) && (frame->forces != NULL) == ((has & 2U) != 0));
    CHECK((frame->box != NULL) == ((has & 4U) != 0) && (frame->box == NULL || frame->box[5] == 15));
    const float *fields[3] = {frame->positions, frame->velocities, frame->forces};
    for (uint32_t i = 0; i < MANY * 9; i++) {
        const float *field = fields[i % 3];
        CHECK(field == NULL || field[i / 3] == value(number, i / 9, (int)(i % 3), (int)(i / 3 % 3)));
    }
}

/* --- Covers ------------------------------------------------------------------------------------------------------ */

/* Returns a part of what is then told; "": the frame is whole. */
static const char *disturb(slice *slices, int64_t *ranks, uint32_t *n) {
    uint32_t at = draw(*n);
    bodhi_frame *frame = &slices[at].frame;
    slice *more = &slices[*n];
    switch (draw(10)) {
    case 0: /* the same slice once more */
        *more = slices[at];
        ranks[(*n)++] = ranks[at];
        return "";
    case 1: /* one that differs in its last value */
        *more = slices[at];
        more->vectors[0][frame->n_atoms * 3 - 1] += 1;
        ranks[(*n)++] = ranks[at];
        return "two slices that differ";
    case 2:
        slices[at] = slices[--*n];
        ranks[at] = ranks[*n];
        return "in no slice";
    case 3:
        frame->n_atoms--;
        return frame->n_atoms == 0 ? "" : "in no slice";
    case 4:
        frame->time += 1;
        return "differ in time";
    case 5:
        slices[at].box[3] += 1;
        return frame->box == NULL ? "" : "differ in box";
    case 6:
        frame->forces = frame->forces == NULL ? slices[at].vectors[2] : NULL;
        return "differ in having forces";
    case 7:
        slices[at].ids[frame->n_atoms++] = MANY;
        return "has pushed atom";
    case 8: /* the last of its atoms in a slice of its own */
        if (frame->n_atoms < 2) {
            return "";
        }
        *more = slices[at];
        more->ids[0] = slices[at].ids[--frame->n_atoms];
        more->frame.n_atoms = 1;
        ranks[(*n)++] = ranks[at];
        return "two slices that differ";
    default: /* all atoms of another rank as well */
        *more = slices[at];
        ranks[(*n)++] = RANKS + 1;
        return "is in the slices of";
    }
}

/* A slice that was copied has its own arrays. */
static void fix_pointers(slice *s) {
    s->frame.positions = s->vectors[0];
    s->frame.velocities = s->frame.velocities == NULL ? NULL : s->vectors[1];
    s->frame.forces = s->frame.forces == NULL ? NULL : s->vectors[2];
    s->frame.box = s->frame.box == NULL ? NULL : s->box;
    s->frame.ids = s->ids;
}

static void test_covers(void) {
    cover_memory memory = {.n_atoms = MANY};
    cover c = {.covered = 0};
    CHECK(cover_reserve(&memory, 2));
    for (uint32_t turn = 0; turn < TURNS; turn++) {
        slice slices[RANKS + 1];
        int64_t ranks[RANKS + 1];
        uint32_t owner[MANY];
        uint32_t n = 0;
        unsigned has = draw(8);
        DOING("turn %u", turn);
        for (uint32_t atom = 0; atom < MANY; atom++) {
            owner[atom] = atom < RANKS ? atom : draw(RANKS);
        }
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            make(&slices[n], 7, MANY, owner, rank, has);
            ranks[n++] = rank;
        }
        const char *expected = turn % 2 == 0 ? "" : disturb(slices, ranks, &n);
        cover_begin(&c, 7, &memory, turn % 2);
        for (uint32_t i = 0, first = draw(n); i < n; i++) {
            slice *s = &slices[(first + i) % n];
            fix_pointers(s);
            if (s->frame.n_atoms > 0) {
                (void)cover_add(&c, ranks[(first + i) % n], &s->frame);
            }
        }
        bool whole = cover_end(&c);
        CHECK(whole == (*expected == '\0') && whole == (c.why[0] == '\0') && strstr(c.why, expected) != NULL);
        if (whole) {
            check_frame(&c.frame, 7, has);
        }
    }
    cover_free(&c);
    cover_release(&memory);
}

/* --- Rounds ------------------------------------------------------------------------------------------------------ */

/* A dataset for each rank's slices, and of whole frames. */
static bodhi_dataset *open_named(const char *name) {
    bodhi_dataset *dataset;
    CHECK(bodhi_dataset_open(store, name, "", 0, BODHI_CREATE, &dataset) == BODHI_OK);
    return dataset;
}

static void push(int64_t frames) {
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        char name[16];
        (void)snprintf(name, sizeof name, "rank%u", rank);
        bodhi_dataset *dataset = open_named(name);
        bodhi_writer *writer;
        CHECK(bodhi_writer_open(dataset, BODHI_NATIVE, NULL, &writer) == BODHI_OK);
        for (int64_t number = 0; number < frames; number++) {
            slice s;
            uint32_t owner[MANY];
            for (uint32_t atom = 0; atom < MANY; atom++) {
                owner[atom] = (atom * 7 + (uint32_t)number / 3) % RANKS;
            }
            make(&s, number, MANY, owner, rank, (unsigned)number % 8);
            CHECK(bodhi_append(writer, &s.frame) == BODHI_OK);
        }
        CHECK(bodhi_writer_close(writer) == BODHI_OK);
        bodhi_dataset_close(dataset);
    }
}

/* Read what one process reads of a round: of every second rank. */
static void read_round(gather *g, uint32_t own, const int64_t *numbers, size_t n) {
    for (uint32_t rank = own; rank < RANKS; rank += 2) {
        char name[16];
        (void)snprintf(name, sizeof name, "rank%u", rank);
        bodhi_dataset *dataset = open_named(name);
        bodhi_reader *reader;
        bodhi_read_options options = {.fields = BODHI_POSITIONS | BODHI_VELOCITIES | BODHI_FORCES | BODHI_IDS};
        int64_t missed = -1;
        CHECK(bodhi_reader_open(dataset, numbers, (int64_t)n, &options, &reader) == BODHI_OK);
        int status = gather_read(g, rank, reader, &missed);
        if (numbers[n - 1] == (int64_t)ROUNDS * OF_ROUND) { /* of which there is no slice */
            CHECK(status == BODHI_MISS && missed == numbers[n - 1]);
            status = gather_read(g, rank, reader, &missed);
        }
        CHECK(status == BODHI_END);
        bodhi_reader_close(reader);
        bodhi_dataset_close(dataset);
    }
}

/* Give one process what the other has packed, in memory of just its size; less of it is refused. */
static void hand_over(gather *from, gather *to, int32_t target) {
    const parcel *p = &from->parcels[target];
    unsigned char *exact = malloc(p->size + 1);
    CHECK(exact != NULL);
    memcpy(exact, p->bytes, p->size);
    CHECK(gather_take(to, exact, p->size) == BODHI_OK);
    free(exact);
}

static void check_cut(const gather *from, int32_t target, const int64_t *numbers, const int32_t *assembler, size_t n) {
    const parcel *p = &from->parcels[target];
    gather *g;
    CHECK(gather_open(MANY, 2, target, &g) == BODHI_OK);
    size_t wholes = 0;
    for (size_t size = 0; size <= p->size; size++) {
        unsigned char *exact = malloc(size + 1);
        CHECK(exact != NULL);
        memcpy(exact, p->bytes, size);
        CHECK(gather_begin(g, numbers, assembler, n) == BODHI_OK);
        int status = gather_take(g, exact, size);
        CHECK(status == BODHI_OK || status == BODHI_ERROR_ARGUMENT);
        wholes += status == BODHI_OK;
        free(exact);
    }
    CHECK(wholes < (size_t)2 * RANKS * OF_ROUND);
    gather_close(g);
}

static void test_rounds(void) {
    begin_empty("rounds");
    push((int64_t)ROUNDS * OF_ROUND);
    bodhi_dataset *whole = open_named("whole");
    bodhi_writer *writer;
    gather *g[2];
    CHECK(bodhi_writer_open(whole, BODHI_NATIVE, NULL, &writer) == BODHI_OK);
    for (int32_t own = 0; own < 2; own++) {
        CHECK(gather_open(MANY, 2, own, &g[own]) == BODHI_OK);
    }
    CHECK(gather_open(0, 2, 0, &g[0]) == BODHI_ERROR_ARGUMENT && gather_open(1, 2, 2, &g[0]) == BODHI_ERROR_ARGUMENT);
    for (int64_t round = 0; round < ROUNDS; round++) {
        int64_t numbers[OF_ROUND + 1];
        int32_t assembler[OF_ROUND + 1];
        size_t n = OF_ROUND + (round == ROUNDS - 1);
        for (size_t i = 0; i < n; i++) {
            numbers[i] = round * OF_ROUND + (int64_t)i;
            assembler[i] = (int32_t)(draw(2));
        }
        for (uint32_t own = 0; own < 2; own++) {
            CHECK(gather_begin(g[own], numbers, assembler, n) == BODHI_OK);
            read_round(g[own], own, numbers, n);
        }
        if (round == 0) {
            check_cut(g[0], 1, numbers, assembler, n);
        }
        hand_over(g[0], g[1], 1);
        hand_over(g[1], g[0], 0);
        size_t written = 0;
        for (uint32_t own = 0; own < 2; own++) {
            int64_t number;
            int64_t before = -1;
            int status;
            while ((status = gather_write(g[own], writer, &number)) == BODHI_OK) {
                CHECK(number > before && assembler[number - round * OF_ROUND] == (int32_t)own);
                before = number;
                written++;
            }
            CHECK(status == BODHI_END);
        }
        CHECK(written == OF_ROUND);
    }
    CHECK(bodhi_writer_close(writer) == BODHI_OK);
    int64_t all[ROUNDS * OF_ROUND];
    for (int64_t i = 0; i < (int64_t)ROUNDS * OF_ROUND; i++) {
        all[i] = i;
    }
    bodhi_reader *reader;
    bodhi_frame frame;
    CHECK(bodhi_reader_open(whole, all, (int64_t)ROUNDS * OF_ROUND, NULL, &reader) == BODHI_OK);
    for (int64_t i = 0; i < (int64_t)ROUNDS * OF_ROUND; i++) {
        CHECK(bodhi_reader_next(reader, &frame) == BODHI_OK);
        check_frame(&frame, i, (unsigned)i % 8);
    }
    bodhi_reader_close(reader);
    gather_close(g[0]);
    gather_close(g[1]);
    bodhi_dataset_close(whole);
    close_all();
}

/* A frame that is not whole costs no other, and is told. */
static void test_told(void) {
    begin_empty("told");
    bodhi_dataset *whole = open_named("whole");
    bodhi_writer *writer;
    gather *g;
    const int64_t numbers[3] = {2, 5, 9};
    const int32_t assembler[3] = {0, 0, 0};
    const uint32_t owner[MANY] = {0};
    int64_t number;
    slice s;
    CHECK(bodhi_writer_open(whole, BODHI_NATIVE, NULL, &writer) == BODHI_OK);
    CHECK(gather_open(MANY, 1, 0, &g) == BODHI_OK && gather_begin(g, numbers, assembler, 3) == BODHI_OK);
    for (int i = 2; i >= 0; i--) {
        make(&s, numbers[i], MANY, owner, 0, 0);
        s.frame.n_atoms -= i == 1 ? 2 : 0;
        CHECK(gather_add(g, 0, &s.frame) == BODHI_OK);
    }
    make(&s, 3, MANY, owner, 0, 0);
    CHECK(gather_add(g, 0, &s.frame) == BODHI_ERROR_ARGUMENT);
    CHECK(gather_write(g, writer, &number) == BODHI_OK && number == 2);
    CHECK(gather_write(g, writer, &number) == BODHI_MISS && number == 5);
    CHECK(strcmp(gather_why(g), "2 atoms are in no slice, atom 95 first") == 0);
    CHECK(gather_write(g, writer, &number) == BODHI_OK && number == 9);
    CHECK(gather_write(g, writer, &number) == BODHI_END);
    const int64_t twice[2] = {4, 4};
    CHECK(gather_begin(g, twice, assembler, 2) == BODHI_ERROR_ARGUMENT);
    gather_close(g);
    CHECK(bodhi_writer_close(writer) == BODHI_OK);
    bodhi_dataset_close(whole);
    close_all();
}

int main(void) {
    make_home();
    test_covers();
    test_rounds();
    test_told();
    remove_home();
    return 0;
}
