/* A frame that slices make; see coverage.h. */
#include "assemble/coverage.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

enum { ROW = 3 };

void cover_begin(cover *c, int64_t number, cover_memory *memory, size_t place) {
    c->memory = memory;
    c->place = place;
    c->owners = memory->owners + place * memory->n_atoms;
    memset(c->owners, 0, memory->n_atoms * sizeof *c->owners);
    c->frame = (bodhi_frame){.number = number, .n_atoms = (int64_t)memory->n_atoms};
    c->covered = 0;
    c->n_parts = 0;
    c->no_memory = false;
    c->why[0] = '\0';
}

void cover_free(cover *c) {
    free(c->parts);
    *c = (cover){.covered = 0};
}

__attribute__((format(printf, 2, 3))) static bool fail(cover *c, const char *format, ...) {
    if (c->why[0] == '\0') {
        va_list arguments;
        va_start(arguments, format);
        // NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): it is initialised in the line above
        (void)vsnprintf(c->why, sizeof c->why, format, arguments);
        va_end(arguments);
    }
    return false;
}

static bool fail_differing(cover *c, int64_t rank) {
    return fail(c, "rank %lld has pushed two slices that differ", (long long)rank);
}

/* --- Memory ------------------------------------------------------------------------------------------------------ */

bool cover_reserve(cover_memory *m, size_t n) {
    if (n > m->n) {
        cover_release(m);
        m->owners = large_alloc(n * m->n_atoms * sizeof *m->owners, NULL);
        m->n = m->owners == NULL ? 0 : n;
    }
    return n <= m->n;
}

void cover_release(cover_memory *m) {
    for (unsigned i = 0; i < COVER_FIELDS; i++) {
        free(m->vectors[i]);
        m->vectors[i] = NULL;
    }
    free(m->owners);
    m->owners = NULL;
    m->n = 0;
}

/* Where the vectors of a frame lie; NULL: memory is out. */
static float *vectors_of(const cover *c, unsigned field) {
    cover_memory *m = c->memory;
    if (m->vectors[field] == NULL) {
        m->vectors[field] = large_alloc(m->n * m->n_atoms * ROW * sizeof(float), NULL);
    }
    return m->vectors[field] == NULL ? NULL : m->vectors[field] + c->place * m->n_atoms * ROW;
}

/* Take over what the first slice says of the frame. */
static bool begin_frame(cover *c, const bodhi_frame *slice) {
    const float *have[COVER_FIELDS] = {slice->positions, slice->velocities, slice->forces};
    float **arrays[COVER_FIELDS] = {&c->frame.positions, &c->frame.velocities, &c->frame.forces};
    for (unsigned i = 0; i < COVER_FIELDS; i++) {
        if (have[i] != NULL && (*arrays[i] = vectors_of(c, i)) == NULL) {
            return false;
        }
    }
    c->frame.time = slice->time;
    if (slice->box != NULL) {
        c->frame.box = memcpy(c->box, slice->box, sizeof c->box);
    }
    return true;
}

/* --- Slices beside each other ------------------------------------------------------------------------------------ */

/* Bits are compared, so that a NaN is itself. */
static bool same_bits(const void *a, const void *b, size_t size) {
    return memcmp(a, b, size) == 0;
}

/* Whether the slice is of the moment of the first, and has what it has. */
static bool check_alike(cover *c, int64_t rank, const bodhi_frame *slice) {
    const bodhi_frame *f = &c->frame;
    const int64_t first = c->parts[0].rank;
    bool box =
        (f->box == NULL) == (slice->box == NULL) && (f->box == NULL || same_bits(f->box, slice->box, sizeof c->box));
    const char *what = !same_bits(&f->time, &slice->time, sizeof f->time)       ? "time"
                       : !box                                                   ? "box"
                       : (f->velocities == NULL) != (slice->velocities == NULL) ? "having velocities"
                       : (f->forces == NULL) != (slice->forces == NULL)         ? "having forces"
                                                                                : NULL;
    return what == NULL    ? true
           : first == rank ? fail_differing(c, rank)
                           : fail(c, "rank %lld and rank %lld differ in %s", (long long)(first < rank ? first : rank),
                                  (long long)(first < rank ? rank : first), what);
}

/* Whether the slice is to the last bit the one that was added as part `part`. */
static bool is_part(const cover *c, uint32_t part, const bodhi_frame *slice) {
    const float *theirs[COVER_FIELDS] = {slice->positions, slice->velocities, slice->forces};
    const float *ours[COVER_FIELDS] = {c->frame.positions, c->frame.velocities, c->frame.forces};
    bool same = c->parts[part - 1].atoms == slice->n_atoms;
    for (int64_t i = 0; same && i < slice->n_atoms; i++) {
        uint32_t atom = slice->ids[i];
        same = atom < c->frame.n_atoms && c->owners[atom] == part;
        for (unsigned k = 0; same && k < COVER_FIELDS; k++) {
            same =
                theirs[k] == NULL || same_bits(ours[k] + (size_t)atom * ROW, theirs[k] + i * ROW, ROW * sizeof(float));
        }
    }
    return same;
}

/* --- Adding ------------------------------------------------------------------------------------------------------ */

/* Place positions; returns the row of the first atom that another slice or no frame has, n_atoms if there is none. */
static int64_t place_positions(cover *c, uint32_t part, const bodhi_frame *slice) {
    const uint32_t *ids = slice->ids;
    const float *row = slice->positions;
    float *to = c->frame.positions;
    uint32_t *owners = c->owners;
    const size_t n_atoms = (size_t)c->frame.n_atoms;
    int64_t n = slice->n_atoms;
    for (int64_t i = 0; i < n; i++, row += ROW) {
        size_t atom = ids[i];
        if (atom >= n_atoms || owners[atom] != 0) {
            return i;
        }
        owners[atom] = part;
        memcpy(to + atom * ROW, row, ROW * sizeof *row);
    }
    return n;
}

static void place_others(cover *c, const bodhi_frame *slice) {
    const float *theirs[COVER_FIELDS] = {NULL, slice->velocities, slice->forces};
    float *ours[COVER_FIELDS] = {NULL, c->frame.velocities, c->frame.forces};
    for (unsigned k = 1; k < COVER_FIELDS; k++) {
        for (int64_t i = 0; theirs[k] != NULL && i < slice->n_atoms; i++) {
            memcpy(ours[k] + (size_t)slice->ids[i] * ROW, theirs[k] + i * ROW, ROW * sizeof(float));
        }
    }
}

bool cover_add(cover *c, int64_t rank, const bodhi_frame *slice) {
    if (c->why[0] != '\0') {
        return false;
    }
    if (!ARRAY_GROW(c->parts, c->capacity, c->n_parts + 1) || (c->n_parts == 0 && !begin_frame(c, slice))) {
        c->no_memory = true;
        return fail(c, "there is no memory for it");
    }
    if (c->n_parts > 0 && !check_alike(c, rank, slice)) {
        return false;
    }
    uint32_t first = slice->ids[0];
    uint32_t owner = first < c->frame.n_atoms ? c->owners[first] : 0;
    if (owner != 0 && c->parts[owner - 1].rank == rank) {
        return is_part(c, owner, slice) || fail_differing(c, rank);
    }
    c->parts[c->n_parts++] = (cover_part){.rank = rank, .atoms = slice->n_atoms};
    int64_t at = place_positions(c, (uint32_t)c->n_parts, slice);
    if (at < slice->n_atoms) {
        uint32_t atom = slice->ids[at];
        if (atom >= c->frame.n_atoms) {
            return fail(c, "rank %lld has pushed atom %u of %lld", (long long)rank, atom, (long long)c->frame.n_atoms);
        }
        int64_t other = c->parts[c->owners[atom] - 1].rank;
        return other == rank ? fail_differing(c, rank)
                             : fail(c, "atom %u is in the slices of rank %lld and rank %lld", atom,
                                    (long long)(other < rank ? other : rank), (long long)(other < rank ? rank : other));
    }
    place_others(c, slice);
    c->covered += slice->n_atoms;
    return true;
}

/* --- Whole or not ------------------------------------------------------------------------------------------------ */

static int by_rank(const void *a, const void *b) {
    int64_t one = ((const cover_part *)a)->rank;
    int64_t other = ((const cover_part *)b)->rank;
    return one < other ? -1 : one > other;
}

bool cover_end(cover *c) {
    int64_t n = c->frame.n_atoms;
    if (c->why[0] != '\0') {
        return false;
    }
    qsort(c->parts, c->n_parts, sizeof *c->parts, by_rank);
    for (size_t i = 1; i < c->n_parts; i++) {
        if (c->parts[i - 1].rank == c->parts[i].rank) {
            return fail_differing(c, c->parts[i].rank);
        }
    }
    int64_t atom = 0;
    while (c->covered < n && c->owners[atom] != 0) {
        atom++;
    }
    return c->covered == n ||
           fail(c, "%lld atoms are in no slice, atom %lld first", (long long)(n - c->covered), (long long)atom);
}
