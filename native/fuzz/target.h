/* A fuzz target looks at an input and aborts if anything is wrong; driver.c runs it over files. */
#ifndef BODHI_FUZZ_TARGET_H
#define BODHI_FUZZ_TARGET_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
