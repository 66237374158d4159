/* The loops of packing over columns of numbers, compiled for the vector instructions that a processor may have. */
#include "codec/packed.h"

#include <math.h>
#include <string.h>

/* Of each body the compiler makes one version for any processor and one for those with AVX2: VERSIONS has the public
 * function choose. */
#if defined(__x86_64__) && defined(__GNUC__)
#define BODY __attribute__((always_inline)) static inline
#define VERSIONS(type, name, body, parameters, ...)                                                                    \
    static type body##_any parameters {                                                                                \
        return body(__VA_ARGS__);                                                                                      \
    }                                                                                                                  \
    __attribute__((target("avx2"))) static type body##_avx2 parameters {                                               \
        return body(__VA_ARGS__);                                                                                      \
    }                                                                                                                  \
    type name parameters {                                                                                             \
        bool has_avx2 = !packed_portable && __builtin_cpu_supports("avx2") != 0;                                       \
        return has_avx2 ? body##_avx2(__VA_ARGS__) : body##_any(__VA_ARGS__);                                          \
    }
#else
#define BODY static inline
#define VERSIONS(type, name, body, parameters, ...)                                                                    \
    type name parameters {                                                                                             \
        return body(__VA_ARGS__);                                                                                      \
    }
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

/* In single precision: right up to some 10 ** 5 steps from the origin. Returns whether all were found. */
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
    for (size_t start = 0; start < n; start += AT_ONCE) {
        size_t end = start + AT_ONCE < n ? start + AT_ONCE : n;
        uint32_t wrong = 0;
        if (find_close_steps(positions + start, end - start, grid, steps + start)) {
            continue;
        }
        for (size_t i = start; i < end; i++) {
            double step = (double)positions[i] * inverse;
            step = step < limit ? step : limit; /* NaN too */
            step = step > -limit ? step : -limit;
            int32_t whole = (int32_t)(step + (step < 0 ? -0.5 : 0.5));
            steps[i] = whole;
            wrong |= bits_of(packed_position((uint32_t)whole, grid)) ^ bits_of(positions[i]);
        }
        for (size_t i = start; wrong != 0 && i < end; i++) {
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
    for (size_t first = 0; first < n && width > 0; first += PACKED_LANES) {
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

BODY bool is_of(const float *positions, const int32_t *steps, size_t n, packed_grid grid) {
    uint32_t wrong = 0;
    for (size_t i = 0; i < n; i++) {
        wrong |= bits_of(packed_position((uint32_t)steps[i], grid)) ^ bits_of(positions[i]);
    }
    return wrong == 0;
}

/* The values of eight molecules, which lie `stride` apart. */
BODY void load_apart(row *lanes, const int32_t *values, size_t stride) {
    for (size_t lane = 0; lane < PACKED_LANES; lane++) {
        (*lanes)[lane] = (uint32_t)values[lane * stride];
    }
}

/* Whether a site is further from the first along an axis. Offsets wrap, and are added again in the same way. */
BODY uint32_t is_far(const int32_t *site, const int32_t *first, uint32_t reach) {
    uint32_t far = 0;
    for (size_t axis = 0; axis < PACKED_AXES; axis++) {
        far |= (uint32_t)site[axis] - (uint32_t)first[axis] + reach > 2 * reach;
    }
    return far;
}

BODY size_t take_site(const pack_section *s, size_t site, const int32_t *steps, uint32_t *columns, uint32_t *far) {
    const size_t n = s->molecules, stride = (size_t)s->sites * PACKED_AXES;
    const uint32_t reach = s->reach < INT32_MAX ? (uint32_t)s->reach : INT32_MAX;
    uint32_t *offsets = columns + site * PACKED_AXES * n;
    size_t n_far = 0, i = 0;
    for (; i + PACKED_LANES <= n; i += PACKED_LANES) {
        const int32_t *here = steps + i * stride + site * PACKED_AXES;
        row beyond = {0};
        for (size_t axis = 0; axis < PACKED_AXES; axis++) {
            row offset, first;
            load_apart(&offset, here + axis, stride);
            memcpy(&first, columns + axis * n + i, sizeof first);
            offset -= first;
            memcpy(offsets + axis * n + i, &offset, sizeof offset);
            beyond |= (row)(offset + reach > 2 * reach);
        }
        uint64_t words[PACKED_LANES / 2];
        memcpy(words, &beyond, sizeof words);
        for (size_t lane = 0; (words[0] | words[1] | words[2] | words[3]) != 0 && lane < PACKED_LANES; lane++) {
            far[n_far] = (uint32_t)(i + lane);
            n_far += beyond[lane] != 0;
        }
    }
    for (; i < n; i++) {
        const int32_t *first = steps + i * stride;
        const int32_t *here = first + site * PACKED_AXES;
        for (size_t axis = 0; axis < PACKED_AXES; axis++) {
            offsets[axis * n + i] = (uint32_t)here[axis] - (uint32_t)first[axis];
        }
        far[n_far] = (uint32_t)i;
        n_far += is_far(here, first, reach);
    }
    return n_far;
}

BODY void take_first(const pack_section *s, const int32_t *steps, uint32_t *columns) {
    const size_t n = s->molecules, stride = (size_t)s->sites * PACKED_AXES;
    for (size_t axis = 0; axis < PACKED_AXES; axis++) {
        size_t i = 0;
        for (; i + PACKED_LANES <= n; i += PACKED_LANES) {
            row lanes;
            load_apart(&lanes, steps + i * stride + axis, stride);
            memcpy(columns + axis * n + i, &lanes, sizeof lanes);
        }
        for (; i < n; i++) {
            columns[axis * n + i] = (uint32_t)steps[i * stride + axis];
        }
    }
}

VERSIONS(bool, pack_find_steps, find_steps, (const float *positions, size_t n, packed_grid grid, int32_t *steps),
         positions, n, grid, steps)
VERSIONS(bool, pack_is_of, is_of, (const float *positions, const int32_t *steps, size_t n, packed_grid grid), positions,
         steps, n, grid)
VERSIONS(void, pack_first_site, take_first, (const pack_section *s, const int32_t *steps, uint32_t *columns), s, steps,
         columns)
VERSIONS(size_t, pack_next_site, take_site,
         (const pack_section *s, size_t site, const int32_t *steps, uint32_t *columns, uint32_t *far), s, site, steps,
         columns, far)
VERSIONS(unsigned, pack_measure, measure, (const uint32_t *values, size_t n, uint32_t *least), values, n, least)
VERSIONS(void, pack_stream, write_stream,
         (const uint32_t *values, size_t n, uint32_t least, unsigned width, unsigned char *out), values, n, least,
         width, out)
