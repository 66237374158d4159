#include "proteins/dssp.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "molecules/molecules.h"
#include "proteins/backbone.h"

enum { COIL = '-', SHORTEST_TURN = 3, LONGEST_TURN = 5, STRETCH = 3 };
/* A bend is where the chain turns by more than 70 degrees between i - 2, i and i + 2. */
static const double COS_70 = 0.34202014332566873;
/* Phi and psi of polyproline are within 29 degrees of -75 and 145. */
static const double COS_29 = 0.87461970713939580;
static const double COS_PHI = 0.25881904510252074, SIN_PHI = -0.96592582628906831;
static const double COS_PSI = -0.81915204428899180, SIN_PSI = 0.57357643635104605;

static void subtract(const float a[3], const float b[3], double to[3]) {
    for (int axis = 0; axis < 3; axis++) {
        to[axis] = (double)a[axis] - b[axis];
    }
}

static double dot(const double a[3], const double b[3]) {
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2];
}

static void cross(const double a[3], const double b[3], double to[3]) {
    to[0] = a[1] * b[2] - a[2] * b[1];
    to[1] = a[2] * b[0] - a[0] * b[2];
    to[2] = a[0] * b[1] - a[1] * b[0];
}

/* Whether a dihedral angle is within 29 degrees of another; no arctangent, whose last bits differ by processor. */
static int is_near(const float a[3], const float b[3], const float c[3], const float d[3], double cosine, double sine) {
    double ab[3], bc[3], cd[3], first[3], second[3];
    subtract(b, a, ab);
    subtract(c, b, bc);
    subtract(d, c, cd);
    cross(ab, bc, first);
    cross(bc, cd, second);
    const double x = dot(first, second), y = sqrt(dot(bc, bc)) * dot(ab, second);
    return x * cosine + y * sine >= COS_29 * sqrt(x * x + y * y) && (x != 0 || y != 0);
}

static int is_polyproline(const struct backbone *backbone, size_t i) {
    if (i == 0 || i + 1 >= backbone->n || !of_one_chain(backbone, i - 1, i + 1)) {
        return 0;
    }
    const float(*before)[3] = backbone->at[i - 1], (*here)[3] = backbone->at[i], (*after)[3] = backbone->at[i + 1];
    return is_near(before[BACKBONE_C], here[BACKBONE_N], here[BACKBONE_CA], here[BACKBONE_C], COS_PHI, SIN_PHI) &&
           is_near(here[BACKBONE_N], here[BACKBONE_CA], here[BACKBONE_C], after[BACKBONE_N], COS_PSI, SIN_PSI);
}

static int is_bend(const struct backbone *backbone, size_t i) {
    if (i < 2 || i + 2 >= backbone->n || !of_one_chain(backbone, i - 2, i + 2)) {
        return 0;
    }
    double before[3], after[3];
    subtract(backbone->at[i][BACKBONE_CA], backbone->at[i - 2][BACKBONE_CA], before);
    subtract(backbone->at[i + 2][BACKBONE_CA], backbone->at[i][BACKBONE_CA], after);
    return dot(before, after) < COS_70 * sqrt(dot(before, before) * dot(after, after));
}

/* Whether a turn of so many residues begins at i: the hydrogen of i + length is bonded to its oxygen. */
static int begins_turn(const struct backbone *backbone, const bond_partners *partners, size_t i, size_t length) {
    return i + length < backbone->n && of_one_chain(backbone, i, i + length) &&
           is_bonded(partners, (int64_t)(i + length), (int64_t)i);
}

/* Mark residues in helices of turns of a length: two turns in succession make one, which does not include the ends.
 * `turns` has a bit for each length of turns that begin at a residue. Residues are left as they are unless each of them
 * has one of the states that may be overwritten; NULL: whatever they have. */
static void mark_helices(const uint8_t *turns, size_t n, size_t length, const char *over, uint8_t state,
                         uint8_t *states) {
    for (size_t i = 1; i + length < n; i++) {
        if (!(turns[i - 1] & turns[i] & 1U << length)) {
            continue;
        }
        size_t k = 0;
        while (k < length && (over == NULL || strchr(over, states[i + k]) != NULL)) {
            k++;
        }
        if (k == length) {
            memset(&states[i], state, length);
        }
    }
}

/* Mark residues within turns. */
static void mark_turns(const uint8_t *turns, size_t n, uint8_t *states) {
    for (size_t i = 0; i < n; i++) {
        for (size_t length = SHORTEST_TURN; turns[i] != 0 && length <= LONGEST_TURN; length++) {
            for (size_t k = 1; k < length && turns[i] & 1U << length; k++) {
                if (states[i + k] == COIL) {
                    states[i + k] = 'T';
                }
            }
        }
    }
}

static void mark_bends(const struct backbone *backbone, uint8_t *states) {
    for (size_t i = 0; i < backbone->n; i++) {
        if (states[i] == COIL && is_bend(backbone, i)) {
            states[i] = 'S';
        }
    }
}

static void mark_polyproline(const struct backbone *backbone, uint8_t *states) {
    size_t stretch = 0, coil = 0; /* the first residue from i - STRETCH + 1 on that may be marked */
    for (size_t i = 0; i < backbone->n; i++) {
        coil = coil + STRETCH > i ? coil : i + 1 - STRETCH;
        while (coil < backbone->n && states[coil] != COIL) {
            coil++;
        }
        stretch = coil < i + STRETCH && is_polyproline(backbone, i) ? stretch + 1 : 0;
        for (size_t k = 0; stretch >= STRETCH && k < STRETCH; k++) {
            if (states[i - k] == COIL) {
                states[i - k] = 'P';
            }
        }
    }
}

static int check(const float *positions, const int64_t *chains, size_t n) {
    int finite = 1, rising = 1;
    for (size_t i = 0; i < (size_t)3 * BACKBONE_ATOMS * n; i++) {
        finite &= fabsf(positions[i]) <= FLT_MAX;
    }
    for (size_t i = 1; chains != NULL && i < n; i++) {
        rising &= chains[i - 1] <= chains[i];
    }
    return !finite ? SEARCH_NOT_FINITE : rising ? SEARCH_OK : DSSP_CHAINS_FALL;
}

static void find_turns(const struct backbone *backbone, const bond_partners *partners, uint8_t *turns) {
    for (size_t i = 0; i < backbone->n; i++) {
        turns[i] = 0;
        for (size_t length = SHORTEST_TURN; length <= LONGEST_TURN; length++) {
            turns[i] |= (uint8_t)(begins_turn(backbone, partners, i, length) << length);
        }
    }
}

static void mark_all(const struct backbone *backbone, const bond_partners *partners, uint8_t *turns, uint8_t *states) {
    find_turns(backbone, partners, turns);
    mark_helices(turns, backbone->n, 4, NULL, 'H', states);
    mark_helices(turns, backbone->n, 3, "-G", 'G', states);
    mark_helices(turns, backbone->n, 5, "-IH", 'I', states);
    mark_turns(turns, backbone->n, states);
    mark_bends(backbone, states);
    mark_polyproline(backbone, states);
}

/* Write the positions of the backbone to `positions` (n, 4, 3), with each chain whole, where its first atom is. */
static void make_whole(const struct backbone *backbone, const struct lattice *lattice, float *positions) {
    memcpy(positions, backbone->at, backbone->n * sizeof *backbone->at);
    for (size_t i = 0; i < backbone->n; i++) {
        const int64_t first = (int64_t)(BACKBONE_ATOMS * i);
        for (int atom = BACKBONE_N; atom < BACKBONE_ATOMS; atom++) {
            const int64_t before = atom == BACKBONE_N ? first - BACKBONE_ATOMS + BACKBONE_C : first + atom - 1;
            const int64_t bond[2] = {before, first + atom};
            if (atom != BACKBONE_N || (i > 0 && of_one_chain(backbone, i - 1, i))) {
                groups_unwrap(lattice, positions, bond, 1);
            }
        }
    }
}

int dssp_assign(struct scratch *search, const float *positions, const int64_t *chains, const uint8_t *prolines,
                size_t n, const struct lattice *lattice, uint8_t *states) {
    struct backbone backbone = {(const float(*)[BACKBONE_ATOMS][3])positions, chains, prolines, n};
    int status = check(positions, chains, n);
    if (status != SEARCH_OK) {
        return status;
    }
    const size_t for_bonds = bonds_scratch(n), for_bridges = bridges_scratch(n);
    const size_t bytes = for_bonds > for_bridges ? for_bonds : for_bridges;
    char *memory = malloc(bytes + n * (sizeof *backbone.at + sizeof(bond_partners) + 1));
    if (memory == NULL) {
        return SEARCH_NO_MEMORY;
    }
    float *whole = (float *)(memory + bytes);
    bond_partners *partners = (bond_partners *)(whole + (size_t)3 * BACKBONE_ATOMS * n);
    uint8_t *turns = (uint8_t *)(partners + n);
    if (lattice->kind != LATTICE_NONE) {
        make_whole(&backbone, lattice, whole);
        backbone.at = (const float(*)[BACKBONE_ATOMS][3])whole;
    }
    status = bonds_find(&backbone, search, memory, partners);
    if (status == SEARCH_OK) {
        memset(states, COIL, n);
        bridges_mark(&backbone, partners, memory, states);
        mark_all(&backbone, partners, turns, states);
    }
    free(memory);
    return status;
}
