/* Planning how a frame's positions are packed: where runs of equal molecules lie, and how the rest is grouped.
 *
 * Equal molecules are known by the distances between their sites, which hardly change from one to the next. What is no
 * such run is cut into short sections, and atoms in groups as if they were molecules: neighbours in a chain are near
 * each other. All of this decides about size only. */
#include <stdlib.h>

#include "base/memory.h"
#include "codec/packed.h"

enum {
    LEAST_MOLECULES = 32, /* of a run */
    LOOK_BACK = 16,       /* molecules, of which so many ... */
    MAX_STRANGE = 4,      /* ... may be unlike the first, for being split over the box */
    LEAST_RUN_SITES = 3,  /* of two, too much else looks like one */
    MAX_RUN_SITES = 6,
    REST_ATOMS = 256, /* of a section that is no run */
    FEW_ATOMS = 8     /* fewer are patched, which takes less */
};

#define TOO_FAR ((int64_t)INT16_MAX * INT16_MAX)

/* --- Runs of molecules ------------------------------------------------------------------------------------------- */

static int64_t squared(const int32_t *a, const int32_t *b) {
    int64_t sum = 0;
    for (int axis = 0; axis < PACKED_AXES; axis++) {
        int64_t difference = (int64_t)a[axis] - b[axis];
        difference = difference > INT16_MAX ? INT16_MAX : difference < INT16_MIN ? INT16_MIN : difference;
        sum += difference * difference;
    }
    return sum;
}

/* Whether two molecules have the same squared distances, to a third of their sum, or to `slack`. */
static bool is_alike(const int32_t *molecule, const int32_t *other, unsigned sites, int64_t slack) {
    for (unsigned site = 1; site < sites; site++) {
        int64_t a = squared(molecule, molecule + (size_t)site * PACKED_AXES);
        int64_t b = squared(other, other + (size_t)site * PACKED_AXES);
        int64_t difference = a < b ? b - a : a - b;
        if ((difference > slack && difference > (a + b) / 3) || a >= TOO_FAR || b >= TOO_FAR) {
            return false;
        }
    }
    return true;
}

/* How many molecules of so many sites are alike from `steps` on; the last one is. */
static uint32_t count_alike(const int32_t *steps, uint32_t n_atoms, unsigned sites, int64_t slack) {
    uint32_t strange = 0; /* bits: which of the last LOOK_BACK were */
    uint32_t count = 1;
    uint32_t last = 1;
    while ((count + 1) * (uint64_t)sites <= n_atoms) {
        bool alike = is_alike(steps, steps + (size_t)count * sites * PACKED_AXES, sites, slack);
        strange = (strange << 1 | !alike) & ((1U << LOOK_BACK) - 1);
        count++;
        last = alike ? count : last;
        if (__builtin_popcount(strange) > MAX_STRANGE || (last == 1 && count > 2)) {
            break;
        }
    }
    return last;
}

/* The farthest that a site of the first molecule lies from its first site, doubled. */
static int64_t reach_of(const int32_t *steps, unsigned sites, int64_t slack) {
    int64_t farthest = slack;
    for (unsigned site = 1; site < sites; site++) {
        int64_t distance = squared(steps, steps + (size_t)site * PACKED_AXES);
        farthest = distance > farthest ? distance : farthest;
    }
    int64_t root = 1;
    while (root * root < farthest) {
        root++;
    }
    return 2 * root;
}

/* The longest run that begins here, of `sites` 0 if there is none. */
static pack_section find_run(const int32_t *steps, uint32_t n_atoms, int64_t slack) {
    pack_section best = {0};
    for (unsigned sites = LEAST_RUN_SITES; sites <= MAX_RUN_SITES; sites++) {
        uint32_t molecules =
            (uint64_t)sites * LEAST_MOLECULES <= n_atoms ? count_alike(steps, n_atoms, sites, slack) : 0;
        if (molecules >= LEAST_MOLECULES && molecules * sites > best.molecules * best.sites) {
            best = (pack_section){.sites = sites, .molecules = molecules, .reach = reach_of(steps, sites, slack)};
        }
    }
    return best;
}

/* --- Sections ---------------------------------------------------------------------------------------------------- */

static bool add_section(pack_plan *plan, pack_section s) {
    if (s.molecules == 0) {
        return true;
    }
    if (!ARRAY_GROW(plan->sections, plan->capacity, plan->n_sections + 1)) {
        return false;
    }
    plan->sections[plan->n_sections++] = s;
    return true;
}

static bool add_gap(pack_plan *plan, uint32_t atoms) {
    return add_section(plan, (pack_section){.sites = 0, .molecules = atoms});
}

/* Bits by which the values of one axis of one site differ. */
static unsigned width_of(const int32_t *steps, uint32_t molecules, unsigned sites, unsigned site, unsigned axis) {
    int64_t low = INT64_MAX;
    int64_t high = INT64_MIN;
    for (size_t i = 0; i < molecules; i++) {
        const int32_t *first = steps + i * sites * PACKED_AXES;
        int64_t value = first[site * PACKED_AXES + axis] - (site == 0 ? 0 : (int64_t)first[axis]);
        low = value < low ? value : low;
        high = value > high ? value : high;
    }
    unsigned width = 0;
    for (uint64_t range = (uint64_t)(high - low); range > 0 && width < 32; range >>= 1) {
        width++;
    }
    return width;
}

/* Bytes of a section of all `atoms`, those that make no whole group patched. */
static uint64_t cost(const int32_t *steps, uint32_t atoms, unsigned sites) {
    uint32_t molecules = atoms / sites;
    uint64_t bytes = packed_section_bytes(sites) + (uint64_t)(atoms % sites) * PACKED_PATCH_BYTES;
    for (unsigned site = 0; site < sites; site++) {
        for (unsigned axis = 0; axis < PACKED_AXES; axis++) {
            bytes += packed_stream_bytes(molecules, width_of(steps, molecules, sites, site, axis));
        }
    }
    return bytes;
}

/* Sections for atoms that are no run. */
static bool add_rest(pack_plan *plan, const int32_t *steps, uint32_t atoms) {
    while (atoms >= FEW_ATOMS) {
        uint32_t first_atoms = atoms < 2 * REST_ATOMS ? atoms : REST_ATOMS;
        unsigned best = 1;
        uint64_t least = cost(steps, first_atoms, 1);
        for (unsigned sites = 2; sites <= PACKED_MAX_SITES; sites++) {
            uint64_t bytes = cost(steps, first_atoms, sites);
            best = bytes < least ? sites : best;
            least = bytes < least ? bytes : least;
        }
        uint32_t used = first_atoms / best * best;
        if (!add_section(plan, (pack_section){.sites = best, .molecules = first_atoms / best, .reach = INT64_MAX})) {
            return false;
        }
        bool was_last = first_atoms == atoms;
        steps += (size_t)used * PACKED_AXES;
        atoms -= used;
        if (was_last) {
            break;
        }
    }
    return add_gap(plan, atoms);
}

/* --- The plan ---------------------------------------------------------------------------------------------------- */

/* Add atoms from `atom` to end - 1, a run if it has sites, cut where blocks end. */
static bool add_cut(pack_plan *plan, const int32_t *steps, uint32_t atom, uint32_t end, const pack_section *run) {
    bool done = true;
    uint32_t lead = 0; /* atoms of a molecule that a border cuts */
    while (done && atom < end) {
        uint64_t border = ((uint64_t)atom / plan->block_atoms + 1) * plan->block_atoms;
        uint32_t room = (border < end ? (uint32_t)border : end) - atom;
        if (run->sites == 0) {
            done = add_rest(plan, steps + (size_t)atom * PACKED_AXES, room);
        } else if (lead > 0) {
            room = lead < room ? lead : room;
            done = add_gap(plan, room);
            lead -= room;
        } else {
            uint32_t molecules = room / run->sites;
            uint32_t left = room % run->sites;
            done = add_section(plan, (pack_section){run->sites, molecules, run->reach}) && add_gap(plan, left);
            lead = left > 0 ? run->sites - left : 0;
        }
        atom += room;
    }
    return done;
}

bool pack_make_plan(pack_plan *plan, const int32_t *steps, uint32_t n_atoms, uint32_t block_atoms, packed_grid grid) {
    double step = (double)grid.unit * (double)grid.scale;
    int64_t slack = (int64_t)(0.09 / (step * step)) + 4; /* 0.3 Angstrom */
    const pack_section none = {0};
    uint32_t rest = 0; /* begins here */
    uint32_t atom = 0;
    bool done = true;
    plan->n_sections = 0;
    plan->n_atoms = n_atoms;
    plan->block_atoms = block_atoms;
    while (done && atom < n_atoms) {
        pack_section run = find_run(steps + (size_t)atom * PACKED_AXES, n_atoms - atom, slack);
        if (run.sites == 0) {
            atom++;
            continue;
        }
        uint32_t end = atom + run.molecules * run.sites;
        done = add_cut(plan, steps, rest, atom, &none) && add_cut(plan, steps, atom, end, &run);
        rest = end;
        atom = end;
    }
    done = done && add_cut(plan, steps, rest, n_atoms, &none);
    plan->n_atoms = done ? n_atoms : 0;
    return done;
}
