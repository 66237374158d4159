/* The loops of packing over columns of numbers, compiled for the vector instructions that a processor may have. */
#include "codec/pack.h"

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

typedef uint32_t row __attribute__((vector_size(PACKED_ROW_BYTES)));

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

/* The quick way, in single precision: right for positions up to some 10 ** 5 steps from the origin. Returns whether all
 * of them were found. */
BODY bool find_close_steps(const float *positions, size_t n, packed_grid grid, int32_t *steps) {
    const float inverse = (float)(1.0 / ((double)grid.unit * (double)grid.scale));
    const float rounding = 12582912.0F; /* 1.5 * 2 ** 23: adding it leaves the whole number in the lowest bits */
    const uint32_t offset = bits_of(rounding);
    uint32_t wrong = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t whole = bits_of(positions[i] * inverse + rounding) - offset;
        steps[i] = (int32_t)whole;
        wrong |= bits_of(packed_position(whole, grid)) ^ bits_of(positions[i]);
    }
    return wrong == 0;
}

BODY bool find_steps(const float *positions, size_t n, packed_grid grid, int32_t *steps) {
    const double inverse = 1.0 / ((double)grid.unit * (double)grid.scale);
    const double limit = 2147483000.0;
    for (size_t begin = 0; begin < n; begin += AT_ONCE) {
        size_t end = begin + AT_ONCE < n ? begin + AT_ONCE : n;
        uint32_t wrong = 0;
        if (find_close_steps(positions + begin, end - begin, grid, steps + begin)) {
            continue;
        }
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
    row low = {0};
    uint32_t used = 0; /* bits of `low` */
    for (size_t first = 0; first < n; first += PACKED_LANES) {
        row lanes;
        if (n - first >= PACKED_LANES) {
            memcpy(&lanes, values + first, sizeof lanes);
            lanes -= least;
        } else {
            for (size_t lane = 0; lane < PACKED_LANES; lane++) {
                lanes[lane] = first + lane < n ? values[first + lane] - least : 0;
            }
        }
        low |= lanes << used;
        if (used + width >= 32) {
            memcpy(out, &low, sizeof low);
            out += PACKED_ROW_BYTES;
            low = used == 0 ? (row){0} : lanes >> (32 - used);
        }
        used = (used + width) % 32;
    }
    if (used > 0) {
        memcpy(out, &low, sizeof low);
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
