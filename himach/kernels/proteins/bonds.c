/* Hydrogen bonds of a backbone: which pairs are near enough, and their energies. */
#include "proteins/backbone.h"

#include <math.h>

#include "clones.h"

/* Charges of 0.42 and 0.20 e, in kcal/mol Å. */
static const double COUPLING = 332 * 0.42 * 0.20;
/* Distances in Å; an energy of atoms that are nearer is the least. */
static const double LEAST_DISTANCE = 0.5, FARTHEST_CA = 9.0, N_H = 1.0;
/* Energies in cal/mol: DSSP rounds to them, so that a bond is below -0.5005 kcal/mol. */
static const double LEAST_ENERGY = -9900;
enum { BOND_ENERGY = -500 };
/* From so many vectors of residues on it pays to ask first which of them are near. */
enum { MANY_BLOCKS = 16 };
/* More than what single precision makes of the distance of two places is off, a part of their coordinates. */
static const double ROUNDING = 1e-5;

/* A residue as a donor: its nitrogen and where its hydrogen is. */
struct donor {
    double n[3], h[3];
};

INLINE double distance(const double a[3], const float b[3]) {
    const double x = a[0] - b[0], y = a[1] - b[1], z = a[2] - b[2];
    return sqrt(x * x + y * y + z * z);
}

/* The energy of a bond in cal/mol, a whole number. */
INLINE double energy_of(const struct donor *donor, const float c[3], const float o[3]) {
    const double ho = distance(donor->h, o), hc = distance(donor->h, c);
    const double nc = distance(donor->n, c), no = distance(donor->n, o);
    if (ho < LEAST_DISTANCE || hc < LEAST_DISTANCE || nc < LEAST_DISTANCE || no < LEAST_DISTANCE) {
        return LEAST_ENERGY;
    }
    const double energy = round(1000 * (COUPLING / no + COUPLING / hc - COUPLING / ho - COUPLING / nc));
    return energy < LEAST_ENERGY ? LEAST_ENERGY : energy;
}

INLINE int are_near(const float a[3], const float b[3]) {
    const double x = (double)a[0] - b[0], y = (double)a[1] - b[1], z = (double)a[2] - b[2];
    return x * x + y * y + z * z <= FARTHEST_CA * FARTHEST_CA;
}

/* Place the hydrogen of residue i, opposite to the C=O before it; 0: it has none, as prolines and first ones. */
INLINE int place(const struct backbone *backbone, size_t i, struct donor *donor) {
    if (i == 0 || !of_one_chain(backbone, i - 1, i) || (backbone->prolines != NULL && backbone->prolines[i])) {
        return 0;
    }
    const float *c = backbone->at[i - 1][BACKBONE_C], *o = backbone->at[i - 1][BACKBONE_O];
    const double oc[3] = {(double)c[0] - o[0], (double)c[1] - o[1], (double)c[2] - o[2]};
    const double length = sqrt(oc[0] * oc[0] + oc[1] * oc[1] + oc[2] * oc[2]);
    for (int axis = 0; axis < 3; axis++) {
        donor->n[axis] = backbone->at[i][BACKBONE_N][axis];
        donor->h[axis] = donor->n[axis] + N_H * oc[axis] / length;
    }
    return length > 0;
}

/* How far the middles of N-H and C=O, of some length, may be from each other in a bond.
 *
 * At a distance d of the middles no energy is below that of the two on one line,
 *     -2 d COUPLING N_H length / ((d² - a²)(d² - b²)),
 * where a and b are half the sum and half the difference of the lengths. (The energy is an integral over both lengths
 * of what two dipoles have, at most 2 / r³. The two places in which r is d + w and d - w have the most if w lies along
 * d, and that has positive coefficients only as a series in w².) Where it is that of a bond, (d² - a²)² <= c d: each
 * step begins above that d, and ends above it. */
static double farthest(double length) {
    const double c = 2 * COUPLING * N_H * length / (-BOND_ENERGY / 1000.0), a = (N_H + length) / 2;
    double d = a + cbrt(c);
    for (int step = 0; step < 4; step++) {
        d = sqrt(a * a + sqrt(c * d));
    }
    return d;
}

/* Places by axes, in whole vectors; beyond the last one are places that nothing is near to. */
struct places {
    float *x, *y, *z;
    size_t padded;
};

/* The middles of all C=O, and the square of how far that of an N-H may be. Where there are many, the middle of the
 * extent of each vector of them, too, with the square of how far that of an N-H may be if it is near to any of them. */
struct middles {
    struct places each, blocks;
    float *squares, square;
};

static size_t padded_to(size_t n) {
    return (n + LANES - 1) / LANES * LANES;
}

static struct places take(float **memory, size_t n) {
    const size_t padded = padded_to(n);
    const struct places places = {*memory, *memory + padded, *memory + 2 * padded, padded};
    *memory += 3 * padded;
    for (size_t j = n; j < padded; j++) {
        places.x[j] = places.y[j] = places.z[j] = INFINITY;
    }
    return places;
}

INLINE floats squares_of(const struct places *places, size_t from, const float middle[3]) {
    const floats x = load(&places->x[from]) - middle[0];
    const floats y = load(&places->y[from]) - middle[1];
    const floats z = load(&places->z[from]) - middle[2];
    return x * x + y * y + z * z;
}

/* Place the middles; return how far that of an N-H may be from one of them. */
static double place_middles(const struct backbone *backbone, const struct places *to) {
    float *const axes[3] = {to->x, to->y, to->z};
    double longest = 0, largest = 0;
    for (size_t j = 0; j < backbone->n; j++) {
        const float *c = backbone->at[j][BACKBONE_C], *o = backbone->at[j][BACKBONE_O];
        double square = 0;
        for (size_t axis = 0; axis < 3; axis++) {
            const double side = (double)o[axis] - c[axis], middle = c[axis] + 0.5 * side;
            square += side * side;
            axes[axis][j] = (float)middle;
            largest = fabs(middle) > largest ? fabs(middle) : largest;
        }
        longest = square > longest ? square : longest;
    }
    return farthest(sqrt(longest)) + ROUNDING * (1 + largest);
}

/* The middle of the extent of n places along an axis; adds the square of half of it to `square`. */
static float middle_of(const float *places, size_t n, double *square) {
    double low = places[0], high = places[0];
    for (size_t k = 1; k < n; k++) {
        low = places[k] < low ? places[k] : low;
        high = places[k] > high ? places[k] : high;
    }
    *square += 0.25 * (high - low) * (high - low);
    return (float)(0.5 * (low + high));
}

static struct middles find_middles(const struct backbone *backbone, float *memory) {
    struct middles every = {.each = take(&memory, backbone->n)};
    const size_t n_blocks = every.each.padded / LANES;
    const double distance = place_middles(backbone, &every.each);
    every.square = (float)(distance * distance);
    if (n_blocks < MANY_BLOCKS) {
        return every;
    }
    every.blocks = take(&memory, n_blocks);
    every.squares = memory;
    for (size_t block = 0; block < every.blocks.padded; block++) {
        const size_t first = block * LANES;
        every.squares[block] = 0;
        if (block < n_blocks) {
            const size_t n = backbone->n - first < LANES ? backbone->n - first : LANES;
            double square = 0;
            every.blocks.x[block] = middle_of(&every.each.x[first], n, &square);
            every.blocks.y[block] = middle_of(&every.each.y[first], n, &square);
            every.blocks.z[block] = middle_of(&every.each.z[first], n, &square);
            const double reach = distance + sqrt(square);
            every.squares[block] = (float)(reach * reach);
        }
    }
    return every;
}

/* Keep a bond if it is one of the two of least energy; of equal ones the first stays. */
INLINE void keep(double energies[2], bond_partners partners, int32_t acceptor, double energy) {
    if (energy < energies[0]) {
        energies[1] = energies[0];
        partners[1] = partners[0];
        energies[0] = energy;
        partners[0] = acceptor;
    } else if (energy < energies[1]) {
        energies[1] = energy;
        partners[1] = acceptor;
    }
}

/* Keep the bond to residue j, if it is one; j may be beyond the last where coordinates are too large to tell. */
INLINE void try_acceptor(const struct backbone *backbone, size_t i, size_t j, const struct donor *donor,
                         double energies[2], bond_partners partners) {
    if (j >= backbone->n || j == i || j + 1 == i ||
        !are_near(backbone->at[i][BACKBONE_CA], backbone->at[j][BACKBONE_CA])) {
        return;
    }
    const double energy = energy_of(donor, backbone->at[j][BACKBONE_C], backbone->at[j][BACKBONE_O]);
    keep(energies, partners, (int32_t)j, energy);
}

size_t bonds_scratch(size_t n) {
    return (3 * padded_to(n) + 4 * padded_to(padded_to(n) / LANES)) * sizeof(float);
}

INLINE void try_block(const struct backbone *backbone, const struct middles *middles, size_t first, size_t i,
                      const float middle[3], const struct donor *donor, double energies[2], bond_partners partners) {
    const ints near = squares_of(&middles->each, first, middle) <= middles->square;
    if (any_of(near)) {
        for (unsigned bits = bits_of(near); bits != 0; bits &= bits - 1) {
            try_acceptor(backbone, i, first + (unsigned)__builtin_ctz(bits), donor, energies, partners);
        }
    }
}

INLINE void try_blocks_of_blocks(const struct backbone *backbone, const struct middles *middles, size_t i,
                                 const float middle[3], const struct donor *donor, double energies[2],
                                 bond_partners partners) {
    for (size_t k = 0; k < middles->blocks.padded; k += LANES) {
        const ints near = squares_of(&middles->blocks, k, middle) <= load(&middles->squares[k]);
        for (unsigned bits = bits_of(near); bits != 0; bits &= bits - 1) {
            const size_t first = LANES * (k + (unsigned)__builtin_ctz(bits));
            if (first < middles->each.padded) { /* beyond are blocks that are near where nothing can be told */
                try_block(backbone, middles, first, i, middle, donor, energies, partners);
            }
        }
    }
}

CLONES void bonds_find(const struct backbone *backbone, void *scratch, bond_partners *partners) {
    const struct middles middles = find_middles(backbone, scratch);
    for (size_t i = 0; i < backbone->n; i++) {
        struct donor donor;
        double energies[2] = {BOND_ENERGY, BOND_ENERGY};
        partners[i][0] = partners[i][1] = -1;
        if (!place(backbone, i, &donor)) {
            continue;
        }
        const float middle[3] = {(float)(0.5 * (donor.n[0] + donor.h[0])), (float)(0.5 * (donor.n[1] + donor.h[1])),
                                 (float)(0.5 * (donor.n[2] + donor.h[2]))};
        if (middles.squares == NULL) {
            for (size_t first = 0; first < middles.each.padded; first += LANES) {
                try_block(backbone, &middles, first, i, middle, &donor, energies, partners[i]);
            }
            continue;
        }
        try_blocks_of_blocks(backbone, &middles, i, middle, &donor, energies, partners[i]);
    }
}
