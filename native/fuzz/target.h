/* What a fuzz target is: a function that looks at an input and aborts if anything is wrong. Built with
 * -fsanitize=fuzzer it is a libFuzzer target; with driver.c it is a program that runs the files named on its command
 * line. */
#ifndef BODHI_FUZZ_TARGET_H
#define BODHI_FUZZ_TARGET_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
