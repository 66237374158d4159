/* XTC coordinates: the decoder of one frame's compressed part. Reads and writes within the given bounds, whatever the
 * bytes are; the decoders of other packages do not check, and a damaged frame can crash them.
 *
 * The format, from what its writers do. Coordinates are integers: position times precision, rounded, less the least of
 * each axis. Bits are taken from each byte the most significant first. Three integers below given sizes are one number
 * of mixed radix, (a * size_b + b) * size_c + c, in as many bits as the product of the sizes needs; its bytes come with
 * the least significant first, a last byte of fewer than 8 bits being the most significant. An atom is followed by a
 * flag bit; if that is set, by 5 bits that change the run and step the index of the small sizes down, keep it, or step
 * it up. A run says how many atoms follow as small differences to the atom before, two for the price of a water: the
 * first of a run changes places with the atom that it follows. */
#ifndef HIMACH_XTC_H
#define HIMACH_XTC_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Bytes behind the data that must be readable: the most that an atom with its run takes, rounded up. */
#define XTC_PAD 128

enum xtc_status {
  XTC_OK = 0,
  XTC_SHORT = 1,    /* the atoms take more bits than there are */
  XTC_MANY = 2,     /* a run goes on beyond the last atom */
  XTC_SENSELESS = 3 /* sizes that no writer uses */
};

/* Writers give the index behind the last one where atoms lie too far apart for any small size; no run may use it. */
enum { XTC_FIRST_INDEX = 9, XTC_LAST_INDEX = 73 };

/* Size number i is the greatest whose cube fits into i bits, nearly 2 ** (i / 3); the last stands for none. */
static const uint32_t xtc_sizes[XTC_LAST_INDEX + 1] = {
    0,       0,       0,       0,       0,       0,       0,       0,       0,        8,       10,
    12,      16,      20,      25,      32,      40,      50,      64,      80,       101,     128,
    161,     203,     256,     322,     406,     512,     645,     812,     1024,     1290,    1625,
    2048,    2580,    3250,    4096,    5060,    6501,    8192,    10321,   13003,    16384,   20642,
    26007,   32768,   41285,   52015,   65536,   82570,   104031,  131072,  165140,   208063,  262144,
    330280,  416127,  524287,  660561,  832255,  1048576, 1321122, 1664510, 2097152,  2642245, 3329021,
    4194304, 5284491, 6658042, 8388607, 10568983, 13316085, 16777216, 0};

/* A frame's three sizes, with what divides by them quickly where the number is short enough. */
typedef struct {
  uint32_t size[3];
  uint64_t inverse[3]; /* 2 ** 64 / size, rounded up; exact for numbers below 2 ** 64 / size */
  unsigned bits;
  int quick;
} xtc_radix;

typedef struct {
  const uint8_t *bytes;
  uint64_t at; /* in bits */
} xtc_bits;

static inline unsigned xtc_length(unsigned __int128 number) {
  unsigned bits = 0;
  for (; number != 0; number >>= 1) bits++;
  return bits;
}

static inline void xtc_set_radix(xtc_radix *radix, uint32_t a, uint32_t b, uint32_t c, unsigned bits) {
  const uint32_t size[3] = {a, b, c};
  unsigned widest = 0;
  for (int k = 0; k < 3; k++) {
    radix->size[k] = size[k];
    radix->inverse[k] = size[k] > 1 ? UINT64_MAX / size[k] + 1 : 0;
    if (xtc_length(size[k]) > widest) widest = xtc_length(size[k]);
  }
  radix->bits = bits;
  radix->quick = bits + widest <= 64 && b > 1 && c > 1;
}

/* The next 64 bits, the first of them on top. */
static inline uint64_t xtc_peek(const xtc_bits *in) {
  const uint8_t *from = in->bytes + (in->at >> 3);
  const unsigned skip = (unsigned)(in->at & 7);
  uint64_t word;
  memcpy(&word, from, sizeof word);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  word = __builtin_bswap64(word);
#endif
  return skip == 0 ? word : word << skip | from[8] >> (8 - skip);
}

/* A number of 0 to 64 bits. */
static inline uint64_t xtc_take(xtc_bits *in, unsigned bits) {
  const uint64_t word = bits == 0 ? 0 : xtc_peek(in) >> (64 - bits);
  in->at += bits;
  return word;
}

/* A number of 1 to 64 bits whose bytes come with the least significant first. */
static inline uint64_t xtc_take_swapped(xtc_bits *in, unsigned bits) {
  const uint64_t bytes = __builtin_bswap64(xtc_peek(in));
  const unsigned whole = bits & ~7u, rest = bits & 7u;
  in->at += bits;
  if (rest == 0) return whole == 64 ? bytes : bytes & ((UINT64_C(1) << whole) - 1);
  return (bytes & ((UINT64_C(1) << whole) - 1)) | (bytes >> whole & 0xff) >> (8 - rest) << whole;
}

static inline void xtc_take_three(xtc_bits *in, const xtc_radix *radix, uint32_t out[3]) {
  if (radix->quick) {
    uint64_t number = xtc_take_swapped(in, radix->bits);
    for (int k = 2; k > 0; k--) {
      const uint64_t quotient = (uint64_t)((unsigned __int128)number * radix->inverse[k] >> 64);
      out[k] = (uint32_t)(number - quotient * radix->size[k]);
      number = quotient;
    }
    out[0] = (uint32_t)number;
    return;
  }
  unsigned __int128 number;
  if (radix->bits > 64) {
    number = xtc_take_swapped(in, 64);
    number |= (unsigned __int128)xtc_take_swapped(in, radix->bits - 64) << 64;
  } else {
    number = xtc_take_swapped(in, radix->bits);
  }
  for (int k = 2; k > 0; k--) {
    out[k] = (uint32_t)(number % radix->size[k]);
    number /= radix->size[k];
  }
  out[0] = (uint32_t)number;
}

/* In the two roundings that other readers make too, so that every bit agrees. */
static inline void xtc_put(float *out, const uint32_t coordinate[3], float unit, float scale) {
  for (int k = 0; k < 3; k++) {
    const float position = (float)(int32_t)coordinate[k] * unit;
    out[k] = position * scale;
  }
}

/* Decode the first `needed` of n_atoms atoms, and maybe more, from n_bytes bytes (and XTC_PAD readable ones behind) to
 * out, 3 * n_atoms floats.
 * least, greatest: of each axis, as in the frame's header; index: of the small sizes; unit: 1 / precision. */
static int xtc_decode(const uint8_t *bytes, size_t n_bytes, const int32_t least[3], const int32_t greatest[3],
                      int index, float unit, float scale, size_t n_atoms, size_t needed, float *out) {
  uint32_t size[3], coordinate[3], before[3];
  for (int k = 0; k < 3; k++) {
    size[k] = (uint32_t)greatest[k] - (uint32_t)least[k] + 1;
    if (greatest[k] < least[k] || size[k] == 0) return XTC_SENSELESS;
  }
  if (index < XTC_FIRST_INDEX || index > XTC_LAST_INDEX) return XTC_SENSELESS;
  const int apart = (size[0] | size[1] | size[2]) > 0xffffff; /* too large to be one number */
  xtc_radix full, small;
  xtc_set_radix(&full, size[0], size[1], size[2], apart ? 0 : xtc_length((unsigned __int128)size[0] * size[1] * size[2]));
  xtc_set_radix(&small, xtc_sizes[index], xtc_sizes[index], xtc_sizes[index], (unsigned)index);
  xtc_bits in = {bytes, 0};
  const uint64_t end = (uint64_t)n_bytes * 8;
  unsigned run = 0;
  for (size_t i = 0; i < needed;) {
    if (in.at > end) return XTC_SHORT;
    if (apart) {
      for (int k = 0; k < 3; k++) coordinate[k] = (uint32_t)xtc_take(&in, xtc_length(size[k]));
    } else {
      xtc_take_three(&in, &full, coordinate);
    }
    for (int k = 0; k < 3; k++) coordinate[k] += (uint32_t)least[k];
    int change = 0;
    if (xtc_take(&in, 1)) {
      const unsigned code = (unsigned)xtc_take(&in, 5);
      change = (int)(code % 3) - 1;
      run = code / 3;
    }
    if (run + 1 > n_atoms - i) return XTC_MANY;
    if (run > 0 && small.size[0] == 0) return XTC_SENSELESS;
    const uint32_t half = small.size[0] / 2;
    float *place = out + 3 * i;
    i += run + 1;
    memcpy(before, coordinate, sizeof before);
    if (run == 0) xtc_put(place, coordinate, unit, scale);
    for (unsigned k = 0; k < run; k++) {
      uint32_t delta[3];
      xtc_take_three(&in, &small, delta);
      for (int axis = 0; axis < 3; axis++) before[axis] += delta[axis] - half;
      xtc_put(k == 0 ? place : place + 3 * (k + 1), before, unit, scale);
    }
    if (run > 0) xtc_put(place + 3, coordinate, unit, scale);
    if (change != 0) {
      index += change;
      if (index < XTC_FIRST_INDEX || index > XTC_LAST_INDEX) return XTC_SENSELESS;
      xtc_set_radix(&small, xtc_sizes[index], xtc_sizes[index], xtc_sizes[index], (unsigned)index);
    }
  }
  return in.at > end ? XTC_SHORT : XTC_OK;
}

#endif
