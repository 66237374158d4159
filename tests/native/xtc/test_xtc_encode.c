/* XTC frames of random structures: what is encoded is decoded to the same steps, within the bounds that are promised,
 * and to the bytes that it had when MDAnalysis's writer was seen to give them (tests/conversion/test_xtc_bytes.py). */
#include "xtc/xtc.h"

#include <limits.h>
#include <math.h>

#include "../check.h"
#include "../draw.h"
#include "base/crc32c.h"

char doing[256] = "";

enum { ATOMS = 400, FRAMES = 60, HEAD = 92, GUARD = 32, WATERS = 0, CHAIN, CLOUD, LATTICE, FAR, KINDS };

/* A coordinate in thousandths of an Å: one of float's exact numbers times 2^-10. */
static float drawn_float(int32_t extent) {
    return (float)((int32_t)draw((uint32_t)extent * 2) - extent) / 1024;
}

static void place(float *positions, size_t n, int kind, int32_t extent) {
    for (size_t i = 0; i < n; i++) {
        float *at = positions + 3 * i;
        for (size_t k = 0; k < 3; k++) {
            const bool follows = i > 0 && (kind == CHAIN || (kind == WATERS && i % 3 != 0));
            at[k] = follows ? positions[3 * i + k - 3] + drawn_float(1500) : drawn_float(extent);
            if (kind == LATTICE) {
                at[k] = (float)draw(3) * 4;
            } else if (kind == FAR && draw(8) == 0) {
                at[k] *= 4096;
            }
        }
    }
}

static uint32_t word(const uint8_t *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static float float_of(const uint8_t *at) {
    const uint32_t bits = word(at);
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void check_head(const uint8_t *out, const xtc_written_frame *frame) {
    CHECK(word(out) == 1995 && word(out + 4) == frame->n_atoms && word(out + 52) == frame->n_atoms);
    CHECK((int32_t)word(out + 8) == frame->step && float_of(out + 12) == frame->time);
    for (size_t k = 0; k < 9; k++) {
        CHECK(float_of(out + 16 + 4 * k) == frame->box[k]);
    }
}

/* Decoded, it is the positions in whole steps. */
static void check_decoded(const uint8_t *out, size_t n_bytes, const xtc_written_frame *frame) {
    static uint8_t coded[16 * ATOMS + HEAD + XTC_PAD];
    static float steps[3 * ATOMS];
    xtc_frame read = {.bytes = coded, .n_bytes = word(out + 88), .index = (int)word(out + 84)};
    CHECK(float_of(out + 56) == frame->precision);
    for (size_t k = 0; k < 3; k++) {
        read.least[k] = (int32_t)word(out + 60 + 4 * k);
        read.greatest[k] = (int32_t)word(out + 72 + 4 * k);
    }
    CHECK(n_bytes == HEAD + (read.n_bytes + 3) / 4 * 4);
    memcpy(coded, out + HEAD, read.n_bytes);
    memset(coded + read.n_bytes, 0xFF, XTC_PAD);
    size_t used = 0;
    CHECK(xtc_decode(&read, 1, 1, frame->n_atoms, frame->n_atoms, steps, &used) == XTC_OK && used == read.n_bytes);
    for (size_t i = 0; i < 3 * frame->n_atoms; i++) {
        const float nm = frame->positions[i] * frame->scale;
        const float scaled = nm * frame->precision;
        const int32_t step = (int32_t)(float)((double)scaled + (nm >= 0 ? 0.5 : -0.5));
        CHECK(steps[i] == (float)step);
        CHECK(step >= read.least[i % 3] && step <= read.greatest[i % 3]);
    }
    for (size_t at = HEAD + read.n_bytes; at < n_bytes; at++) {
        CHECK(out[at] == 0);
    }
}

/* Returns the checksum of all frames of a kind. */
static uint32_t check_kind(int kind) {
    static float positions[3 * ATOMS];
    static int32_t steps[3 * ATOMS];
    uint32_t checksum = 0;
    drawn = 7U + (uint32_t)kind;
    for (uint32_t number = 0; number < FRAMES; number++) {
        const size_t n = number % 3 == 0 ? 1 + draw(14) : 10 + draw(ATOMS - 10);
        const int32_t extent = 1 << (4 + draw(kind == FAR ? 17 : 20));
        place(positions, n, kind, extent);
        xtc_written_frame frame = {positions, n, 0.1F, number % 4 == 0 ? 100 : 1000, (int32_t)number - 3, 0.5F, {0}};
        for (size_t k = 0; k < 9; k++) {
            frame.box[k] = drawn_float(extent);
        }
        DOING("kind %d, frame %u: %zu atoms", kind, number, n);
        const size_t most = xtc_most_bytes(n);
        uint8_t *out = malloc(most + GUARD);
        CHECK(out != NULL);
        memset(out, 0xA5, most + GUARD);
        size_t n_bytes = 0;
        CHECK(xtc_encode(&frame, steps, out, &n_bytes) == XTC_WRITTEN);
        CHECK(n_bytes <= most);
        for (size_t i = 0; i < GUARD; i++) {
            CHECK(out[most + i] == 0xA5);
        }
        check_head(out, &frame);
        if (n > 9) {
            check_decoded(out, n_bytes, &frame);
        } else {
            CHECK(n_bytes == 56 + 12 * n);
            for (size_t i = 0; i < 3 * n; i++) {
                CHECK(float_of(out + 56 + 4 * i) == positions[i] * frame.scale);
            }
        }
        checksum = bodhi_crc32c(checksum, out, n_bytes);
        free(out);
    }
    return checksum;
}

static void check_refused(void) {
    static float positions[3 * 20];
    static int32_t steps[3 * 20];
    static uint8_t out[4096];
    size_t n_bytes = 0;
    const xtc_written_frame frame = {positions, 20, 0.1F, 1000, 0, 0, {0}};
    const float none[] = {NAN, INFINITY, -INFINITY, 2.2e7F, -2.2e7F};
    for (size_t i = 0; i < LENGTH(none); i++) {
        memset(positions, 0, sizeof positions);
        positions[3 * i + 1] = none[i];
        CHECK(xtc_encode(&frame, steps, out, &n_bytes) == XTC_FAR);
    }
    memset(positions, 0, sizeof positions);
    positions[0] = 1.2e7F;
    positions[3] = -1.2e7F; /* each fits, their distance does not */
    CHECK(xtc_encode(&frame, steps, out, &n_bytes) == XTC_FAR);
    positions[3] = -0.9e7F;
    CHECK(xtc_encode(&frame, steps, out, &n_bytes) == XTC_WRITTEN);
}

int main(void) {
    static const uint32_t expected[KINDS] = {0x1F8C79CE, 0xFA8708F7, 0x2EDD8209, 0x15491708, 0xF79A0194};
    for (int kind = 0; kind < KINDS; kind++) {
        const uint32_t found = check_kind(kind);
        DOING("kind %d: checksum %08x", kind, found);
        CHECK(found == expected[kind]);
    }
    check_refused();
    return 0;
}
