/* A fuzz target looks at an input and aborts if anything is wrong; driver.c runs it over files. */
#pragma once

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
