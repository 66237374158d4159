/* The loops of packing over columns of numbers, compiled for the vector instructions that a processor may have. */
#include "pack.h"

#include <math.h>
#include <string.h>

/* The compiler makes of each body one version for any processor and one for those with AVX2. */
#if defined(__x86_64__) && defined(__GNUC__)
#define BODY         __attribute__((always_inline)) static inline
#define FOR_AVX2     __attribute__((target("avx2"))) static
#define has_avx2()   (!packed_portable && __builtin_cpu_supports("avx2") != 0)
#define CHOOSE(call) (has_avx2() ? call##_avx2 : call##_any)
#else
#define BODY         static inline
#define FOR_AVX2     static
#define CHOOSE(call) call##_any
#endif

enum { AT_ONCE = 4096 };

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* Find the step next to `step` that a position is at: from 2 ** 22 steps on, two roundings may shift it by some. */
static bool find_near(float position, packed_grid grid, int32_t *step) {
    for (int32_t shift = -2; shift <= 2; shift++) {
        int32_t near = (int32_t)((uint32_t)*step + (uint32_t)shift);
        if (bits_of(packed_position((uint32_t)near, grid)) == bits_of(position)) {
            *step = near;
            return true;
        }
    }
    return false;
}

BODY bool find_steps(const float *positions, size_t n, packed_grid grid, int32_t *steps) {
    const double inverse = 1.0 / ((double)grid.unit * (double)grid.scale);
    const double limit = 2147483000.0;
    for (size_t begin = 0; begin < n; begin += AT_ONCE) {
        size_t end = begin + AT_ONCE < n ? begin + AT_ONCE : n;
        uint32_t wrong = 0;
        for (size_t i = begin; i < end; i++) {
            double step = (double)positions[i] * inverse;
            step = step < limit ? step : limit; /* NaN too */
            step = step > -limit ? step : -limit;
            int32_t whole = (int32_t)(step + (step < 0 ? -0.5 : 0.5));
            steps[i] = whole;
            wrong |= bits_of(packed_position((uint32_t)whole, grid)) ^ bits_of(positions[i]);
        }
        for (size_t i = begin; wrong != 0 && i < end; i++) {
            if (!find_near(positions[i], grid, &steps[i])) {
                return false;
            }
        }
    }
    return true;
}

BODY unsigned measure(const uint32_t *values, size_t n, uint32_t *least) {
    int32_t low = INT32_MAX;
    int32_t high = INT32_MIN;
    for (size_t i = 0; i < n; i++) {
        int32_t value = (int32_t)values[i];
        low = value < low ? value : low;
        high = value > high ? value : high;
    }
    *least = n == 0 ? 0 : (uint32_t)low;
    uint32_t range = n == 0 ? 0 : (uint32_t)high - (uint32_t)low;
    return range == 0 ? 0 : 32 - (unsigned)__builtin_clz(range);
}

BODY void write_stream(const uint32_t *values, size_t n, uint32_t least, unsigned width, unsigned char *out) {
    uint32_t low[PACKED_LANES] = {0};
    uint32_t used = 0;
    for (size_t row = 0; row < n; row += PACKED_LANES) {
        uint32_t high[PACKED_LANES];
        uint32_t lanes[PACKED_LANES] = {0};
        size_t filled = n - row < PACKED_LANES ? n - row : PACKED_LANES;
        for (size_t lane = 0; lane < filled; lane++) {
            lanes[lane] = values[row + lane] - least;
        }
        for (size_t lane = 0; lane < PACKED_LANES; lane++) {
            low[lane] |= lanes[lane] << used;
            high[lane] = used == 0 ? 0 : lanes[lane] >> (32 - used);
        }
        used += width;
        if (used >= 32) {
            memcpy(out, low, sizeof low);
            memcpy(low, high, sizeof low);
            out += PACKED_ROW_BYTES;
            used -= 32;
            if (used == 0) {
                memset(low, 0, sizeof low);
            }
        }
    }
    if (used > 0) {
        memcpy(out, low, sizeof low);
    }
}

static bool find_steps_any(const float *positions, size_t n, packed_grid grid, int32_t *steps) {
    return find_steps(positions, n, grid, steps);
}

static unsigned measure_any(const uint32_t *values, size_t n, uint32_t *least) {
    return measure(values, n, least);
}

static void write_stream_any(const uint32_t *values, size_t n, uint32_t least, unsigned width, unsigned char *out) {
    write_stream(values, n, least, width, out);
}

#if defined(__x86_64__) && defined(__GNUC__)
FOR_AVX2 bool find_steps_avx2(const float *positions, size_t n, packed_grid grid, int32_t *steps) {
    return find_steps(positions, n, grid, steps);
}

FOR_AVX2 unsigned measure_avx2(const uint32_t *values, size_t n, uint32_t *least) {
    return measure(values, n, least);
}

FOR_AVX2 void write_stream_avx2(const uint32_t *values, size_t n, uint32_t least, unsigned width, unsigned char *out) {
    write_stream(values, n, least, width, out);
}
#endif

bool pack_find_steps(const float *positions, size_t n, packed_grid grid, int32_t *steps) {
    return CHOOSE(find_steps)(positions, n, grid, steps);
}

unsigned pack_measure(const uint32_t *values, size_t n, uint32_t *least) {
    return CHOOSE(measure)(values, n, least);
}

void pack_stream(const uint32_t *values, size_t n, uint32_t least, unsigned width, unsigned char *out) {
    if (width > 0) {
        CHOOSE(write_stream)(values, n, least, width, out);
    }
}
