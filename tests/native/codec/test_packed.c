/* Tests of packing for sanitizers: what is packed decodes to the same bits, from and to memory of just the right size;
 * and of XTC data that make no sense. */
#include "../check.h"
#include "../draw.h"
#include "codec/packed.h"
#include "xtc/xtc.h"

char doing[256];
/* Molecules of `sites` about random places in a box, split over it, on either side of the origin. */
static void fill(float *positions, uint32_t n_atoms, uint32_t sites, uint32_t box) {
    packed_grid grid = {.unit = 0.001F, .scale = 10.0F};
    uint32_t first[PACKED_AXES] = {0};
    for (uint32_t atom = 0; atom < n_atoms; atom++) {
        for (uint32_t axis = 0; axis < PACKED_AXES; axis++) {
            if (atom % sites == 0) {
                first[axis] = draw(box);
            }
            uint32_t offset = 90 + 7 * (atom % sites) + draw(5);
            positions[(size_t)atom * PACKED_AXES + axis] = packed_position((first[axis] + offset) % box - 300, grid);
        }
    }
}

static uint32_t get32(const unsigned char *data) {
    uint32_t value;
    memcpy(&value, data, sizeof value);
    return value;
}

/* A block that is longer than its parts, or patches an atom that it does not have, is refused. */
static void check_refused(const unsigned char *data, size_t size, uint32_t atoms, float *out) {
    unsigned char *longer = calloc(size + PACKED_ROW_BYTES, 1);
    CHECK(longer != NULL);
    memcpy(longer, data, size);
    CHECK(!packed_decode(longer, size + PACKED_ROW_BYTES, atoms, out));
    size_t at = PACKED_HEADER_BYTES;
    for (uint32_t section = get32(data + 4) & 0xFFFF; section > 0; section--) {
        at += packed_section_bytes(get32(data + at + 4));
    }
    if (get32(data + 4) >> 16 > 0) {
        memcpy(longer + at, &atoms, sizeof atoms);
        CHECK(!packed_decode(longer, size, atoms, out));
    }
    free(longer);
}

static void check_decoded(const packer *p, const float *positions, uint32_t n_atoms, uint32_t block_atoms) {
    const unsigned char *data = p->bytes;
    for (uint32_t atom = 0, block = 0; atom < n_atoms; atom += block_atoms, block++) {
        uint32_t atoms = n_atoms - atom < block_atoms ? n_atoms - atom : block_atoms;
        size_t bytes = (size_t)atoms * PACKED_AXES * sizeof(float);
        unsigned char *exact = malloc(p->sizes[block]);
        float *out = malloc(bytes);
        CHECK(exact != NULL && out != NULL);
        memcpy(exact, data, p->sizes[block]);
        for (int way = 0; way < 2; way++) {
            packed_portable = way == 1;
            memset(out, 0xFF, bytes);
            CHECK(packed_decode(exact, p->sizes[block], atoms, out));
            CHECK(memcmp(out, positions + (size_t)atom * PACKED_AXES, bytes) == 0);
        }
        check_refused(exact, p->sizes[block], atoms, out);
        CHECK(!packed_decode(exact, p->sizes[block], atoms + 1, out));
        CHECK(!packed_decode(exact, p->sizes[block] - 32, atoms, out));
        data += p->sizes[block];
        free(exact);
        free(out);
    }
}

/* A position next to one on the grid is not that one. */
static void check_off_grid(packer *p, float *positions, uint32_t n_atoms, uint32_t block_atoms) {
    uint32_t bits;
    float *moved = &positions[n_atoms * PACKED_AXES / 2];
    memcpy(&bits, moved, sizeof bits);
    bits ^= 1;
    memcpy(moved, &bits, sizeof bits);
    if (pack_positions(p, positions, n_atoms, block_atoms)) {
        check_decoded(p, positions, n_atoms, block_atoms);
    }
    bits ^= 1;
    memcpy(moved, &bits, sizeof bits);
}

/* Any bytes: nothing is written behind the last atom, and sizes that there are not are refused. */
static void check_senseless(void) {
    enum { MOST_ATOMS = 6, BYTES = 64, BEHIND = 3 * 64 };
    for (int round = 0; round < 5000; round++) {
        unsigned char bytes[BYTES + XTC_PAD] = {0};
        float out[3 * MOST_ATOMS + BEHIND];
        size_t n_atoms = 1 + draw(MOST_ATOMS);
        const int32_t greatest[3] = {(int32_t)draw(500), (int32_t)draw(500), (int32_t)draw(500)};
        for (int i = 0; i < BYTES; i++) {
            bytes[i] = (unsigned char)draw(256);
        }
        for (size_t i = 0; i < LENGTH(out); i++) {
            out[i] = -1;
        }
        int index = XTC_FIRST_INDEX + (int)draw(XTC_LAST_INDEX - XTC_FIRST_INDEX);
        xtc_frame frame = {.bytes = bytes, .n_bytes = BYTES, .index = index};
        memcpy(frame.greatest, greatest, sizeof greatest);
        size_t used = 0;
        (void)xtc_decode(&frame, 0.001F, 10, n_atoms, n_atoms, out, &used);
        for (size_t i = 3 * n_atoms; i < LENGTH(out); i++) {
            CHECK(out[i] == -1);
        }
        frame.index = XTC_LAST_INDEX + 1 + (int)draw(100);
        CHECK(xtc_decode(&frame, 0.001F, 10, n_atoms, n_atoms, out, &used) == XTC_SENSELESS);
    }
}

int main(void) {
    packer p = {0};
    int packed = 0;
    int frames = 0;
    for (int round = 0; round < 400; round++, frames++) {
        uint32_t n_atoms = 1 + draw(2000);
        uint32_t block_atoms = 1 + draw(1500);
        float *positions = malloc((size_t)n_atoms * PACKED_AXES * sizeof *positions);
        CHECK(positions != NULL);
        fill(positions, n_atoms, 1 + draw(8), 100 + draw(5000));
        packed_portable = round % 3 == 0;
        if (pack_positions(&p, positions, n_atoms, block_atoms)) {
            check_decoded(&p, positions, n_atoms, block_atoms);
            packed++;
        }
        check_off_grid(&p, positions, n_atoms, block_atoms);
        positions[draw(n_atoms * PACKED_AXES)] = 0.0049F;
        CHECK(!pack_positions(&p, positions, n_atoms, block_atoms));
        free(positions);
    }
    packer_free(&p);
    check_senseless();
    CHECK(packed > frames * 9 / 10); /* what could be packed was */
    (void)printf("%d of %d frames packed\n", packed, frames);
    return 0;
}
