/* Hydrogen bonds of a backbone: which pairs are near enough, and their energies. */
#include "proteins/backbone.h"

#include <math.h>
#include <string.h>

#include "search/search.h"

/* Charges of 0.42 and 0.20 e, in kcal/mol Å. */
static const double COUPLING = 332 * 0.42 * 0.20;
/* Distances in Å; an energy of atoms that are nearer is the least. */
static const double LEAST_DISTANCE = 0.5, FARTHEST_CA = 9.0, N_H = 1.0;
/* Energies in cal/mol: DSSP rounds to them, so that a bond is below -0.5005 kcal/mol. */
static const double LEAST_ENERGY = -9900;
enum { BOND_ENERGY = -500 };
/* More than what single precision makes of the distance of two places is off, a part of their coordinates. */
static const double ROUNDING = 1e-5;

/* A residue as a donor: its nitrogen and where its hydrogen is. */
struct donor {
    double n[3], h[3];
    size_t residue;
};

static inline double distance(const double a[3], const float b[3]) {
    const double x = a[0] - b[0], y = a[1] - b[1], z = a[2] - b[2];
    return sqrt(x * x + y * y + z * z);
}

/* The energy of a bond in cal/mol, a whole number. */
static inline double energy_of(const struct donor *donor, const float c[3], const float o[3]) {
    const double ho = distance(donor->h, o), hc = distance(donor->h, c);
    const double nc = distance(donor->n, c), no = distance(donor->n, o);
    if (ho < LEAST_DISTANCE || hc < LEAST_DISTANCE || nc < LEAST_DISTANCE || no < LEAST_DISTANCE) {
        return LEAST_ENERGY;
    }
    const double energy = round(1000 * (COUPLING / no + COUPLING / hc - COUPLING / ho - COUPLING / nc));
    return energy < LEAST_ENERGY ? LEAST_ENERGY : energy;
}

static inline int are_near(const float a[3], const float b[3]) {
    const double x = (double)a[0] - b[0], y = (double)a[1] - b[1], z = (double)a[2] - b[2];
    return x * x + y * y + z * z <= FARTHEST_CA * FARTHEST_CA;
}

/* Place the hydrogen of residue i, opposite to the C=O before it; 0: it has none, as prolines and first ones. */
static int place(const struct backbone *backbone, size_t i, struct donor *donor) {
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

/* Place the middles of all C=O; return how far that of an N-H may be from one of them in a bond. */
static double place_acceptors(const struct backbone *backbone, float (*middles)[3]) {
    double longest = 0, largest = 0;
    for (size_t j = 0; j < backbone->n; j++) {
        const float *c = backbone->at[j][BACKBONE_C], *o = backbone->at[j][BACKBONE_O];
        double square = 0;
        for (size_t axis = 0; axis < 3; axis++) {
            const double side = (double)o[axis] - c[axis], middle = c[axis] + 0.5 * side;
            square += side * side;
            middles[j][axis] = (float)middle;
            largest = fabs(middle) > largest ? fabs(middle) : largest;
        }
        longest = square > longest ? square : longest;
    }
    return farthest(sqrt(longest)) + ROUNDING * (1 + largest);
}

/* Place the donors and the middles of their N-H; return how many there are. */
static size_t place_donors(const struct backbone *backbone, struct donor *donors, float (*middles)[3]) {
    size_t n = 0;
    for (size_t i = 0; i < backbone->n; i++) {
        struct donor *donor = &donors[n];
        if (place(backbone, i, donor)) {
            for (size_t axis = 0; axis < 3; axis++) {
                middles[n][axis] = (float)(0.5 * (donor->n[axis] + donor->h[axis]));
            }
            donor->residue = i;
            n++;
        }
    }
    return n;
}

/* Keep a bond if it is one of the two of least energy; of equal ones the first stays. */
static void keep(double energies[2], bond_partners partners, int32_t acceptor, double energy) {
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

size_t bonds_scratch(size_t n) {
    return n * (sizeof(struct donor) + 6 * sizeof(float));
}

int bonds_find(const struct backbone *backbone, struct scratch *search, void *scratch, bond_partners *partners) {
    struct donor *donors = scratch;
    float(*acceptor_middles)[3] = (float(*)[3])(donors + backbone->n);
    float(*donor_middles)[3] = acceptor_middles + backbone->n;
    const struct lattice none = {.kind = LATTICE_NONE};
    const double reach = place_acceptors(backbone, acceptor_middles);
    const size_t n_donors = place_donors(backbone, donors, donor_middles);
    const struct group acceptors = {acceptor_middles[0], backbone->n};
    const struct atom_pair *pairs;
    size_t n_pairs;
    const int status = search_neighbors(search, &none, (struct group){donor_middles[0], n_donors}, &acceptors, reach,
                                        &pairs, &n_pairs);
    memset(partners, -1, backbone->n * sizeof *partners);
    double energies[2] = {BOND_ENERGY, BOND_ENERGY};
    for (size_t k = 0; k < n_pairs; k++) {
        const struct donor *donor = &donors[pairs[k].i];
        const size_t i = donor->residue, j = pairs[k].j;
        if (k == 0 || pairs[k].i != pairs[k - 1].i) {
            energies[0] = energies[1] = BOND_ENERGY;
        }
        if (j != i && j + 1 != i && are_near(backbone->at[i][BACKBONE_CA], backbone->at[j][BACKBONE_CA])) {
            const double energy = energy_of(donor, backbone->at[j][BACKBONE_C], backbone->at[j][BACKBONE_O]);
            keep(energies, partners[i], (int32_t)j, energy);
        }
    }
    return status;
}
