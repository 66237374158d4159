/* Vectors of frames as the bytes of files. */
#ifndef HIMACH_MOUNT_BYTES_H
#define HIMACH_MOUNT_BYTES_H

#include <stddef.h>
#include <stdint.h>

/* Writes n floats as big-endian ones, each divided by `divisor`, rounded, and multiplied by `factor`. */
void put_big_endian(const float *from, size_t n, float divisor, float factor, uint8_t *to);

/* Writes n positions as three columns of little-endian floats, `stride` bytes from one column to the next. */
void put_columns(const float *from, size_t n, uint8_t *to, size_t stride);

#endif
