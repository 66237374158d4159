/* Numbers drawn at random, the same ones each time. */
#pragma once

#include <stddef.h>
#include <stdint.h>

static uint32_t drawn = 1;

/* A number below `below`. */
static inline uint32_t draw(uint32_t below) {
    drawn = drawn * 1664525U + 1013904223U;
    return (uint32_t)(((uint64_t)drawn * below) >> 32);
}

/* Put numbers into any order. */
static inline void shuffle(int64_t *numbers, size_t n) {
    for (size_t i = n - 1; i > 0 && i < n; i--) {
        size_t j = draw((uint32_t)i + 1);
        int64_t swapped = numbers[i];
        numbers[i] = numbers[j];
        numbers[j] = swapped;
    }
}
