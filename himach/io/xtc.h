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

enum { XTC_SCALED_AT_ONCE = 1024 /* atoms, which stay in a core's own cache */ };

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

/* Bits that one load gives, wherever they begin. */
enum { XTC_AT_ONCE = 57 };

/* A frame's three sizes, with what takes and divides a number quickly where it is short enough. */
typedef struct {
  uint32_t size[3];
  uint64_t inverse[3]; /* 2 ** 64 / size, rounded up; exact for numbers below 2 ** 64 / size */
  unsigned bits;
  unsigned whole, unused; /* bits in whole bytes; those of the last byte that are not the number's */
  uint64_t mask;          /* of whole bytes */
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
  radix->whole = bits & ~7u;
  radix->unused = 8 - (bits & 7u);
  radix->mask = radix->whole < 64 ? (UINT64_C(1) << radix->whole) - 1 : UINT64_MAX;
  radix->quick = bits <= XTC_AT_ONCE && bits + widest <= 64 && b > 1 && c > 1;
}

static inline const xtc_radix *xtc_small_radix(xtc_radix *radixes, int index) {
  if (radixes[index].bits == 0) {
    xtc_set_radix(&radixes[index], xtc_sizes[index], xtc_sizes[index], xtc_sizes[index], (unsigned)index);
  }
  return &radixes[index];
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

/* The next XTC_AT_ONCE bits, the first of them on top. */
static inline uint64_t xtc_glance(const xtc_bits *in) {
  uint64_t word;
  memcpy(&word, in->bytes + (in->at >> 3), sizeof word);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  word = __builtin_bswap64(word);
#endif
  return word << (in->at & 7);
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
    const uint64_t bytes = __builtin_bswap64(xtc_glance(in));
    const uint64_t last = (bytes >> radix->whole & 0xff) >> radix->unused;
    uint64_t number = (bytes & radix->mask) | last << radix->whole;
    in->at += radix->bits;
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

/* Put an atom's coordinates where its position is to be; one by one, as they come from registers. */
static inline void xtc_put(float *out, const uint32_t coordinate[3]) {
  for (int k = 0; k < 3; k++) memcpy(&out[k], &coordinate[k], sizeof coordinate[k]);
}

/* Make positions of n coordinates, in place, in the two roundings that other readers make too, so that every bit
 * agrees. */
static inline void xtc_scale(float *positions, size_t n, float unit, float scale) {
  for (size_t i = 0; i < n; i++) {
    int32_t coordinate;
    memcpy(&coordinate, &positions[i], sizeof coordinate);
    const float position = (float)coordinate * unit;
    positions[i] = position * scale;
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
  xtc_radix full;
  xtc_set_radix(&full, size[0], size[1], size[2], apart ? 0 : xtc_length((unsigned __int128)size[0] * size[1] * size[2]));
  /* Those of small sizes, made when they are first used: frames go back and forth between some. */
  xtc_radix smalls[XTC_LAST_INDEX + 1];
  for (int k = XTC_FIRST_INDEX; k <= XTC_LAST_INDEX; k++) smalls[k].bits = 0;
  const xtc_radix *small = xtc_small_radix(smalls, index);
  xtc_bits in = {bytes, 0};
  const uint64_t end = (uint64_t)n_bytes * 8;
  unsigned run = 0;
  size_t scaled = 0; /* atoms; the others that are decoded are still integers */
  size_t i = 0;
  while (i < needed) {
    if (in.at > end) return XTC_SHORT;
    if (i - scaled >= XTC_SCALED_AT_ONCE) {
      xtc_scale(out + 3 * scaled, 3 * (i - scaled), unit, scale);
      scaled = i;
    }
    if (apart) {
      for (int k = 0; k < 3; k++) coordinate[k] = (uint32_t)xtc_take(&in, xtc_length(size[k]));
    } else {
      xtc_take_three(&in, &full, coordinate);
    }
    for (int k = 0; k < 3; k++) coordinate[k] += (uint32_t)least[k];
    int change = 0;
    const unsigned flag_and_code = (unsigned)(xtc_glance(&in) >> 58);
    in.at += 1;
    if (flag_and_code >> 5) {
      const unsigned code = flag_and_code & 31;
      in.at += 5;
      change = (int)(code % 3) - 1;
      run = code / 3;
    }
    if (run + 1 > n_atoms - i) return XTC_MANY;
    if (run > 0 && small->size[0] == 0) return XTC_SENSELESS;
    const uint32_t half = small->size[0] / 2;
    float *place = out + 3 * i;
    i += run + 1;
    for (int k = 0; k < 3; k++) before[k] = coordinate[k];
    xtc_put(run == 0 ? place : place + 3, coordinate);
    for (unsigned k = 0; k < run; k++) {
      uint32_t delta[3];
      xtc_take_three(&in, small, delta);
      for (int axis = 0; axis < 3; axis++) before[axis] += delta[axis] - half;
      xtc_put(k == 0 ? place : place + 3 * (k + 1), before);
    }
    if (change != 0) {
      index += change;
      if (index < XTC_FIRST_INDEX || index > XTC_LAST_INDEX) return XTC_SENSELESS;
      small = xtc_small_radix(smalls, index);
    }
  }
  xtc_scale(out + 3 * scaled, 3 * (i - scaled), unit, scale);
  return in.at > end ? XTC_SHORT : XTC_OK;
}

#endif
