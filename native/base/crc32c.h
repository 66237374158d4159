/* CRC32C (Castagnoli, reflected polynomial 0x82F63B78), as in iSCSI: bodhi_crc32c("123456789") is 0xE3069283. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The checksum continuing from `crc` (0: from nothing), by the processor's instructions where it has them. */
uint32_t bodhi_crc32c(uint32_t crc, const void *data, size_t size);

/* For fuzzing only: whoever checks a checksum takes it as right. */
extern bool bodhi_bypass_checksums;

/* The same by the table alone, for tests. */
uint32_t bodhi_crc32c_portable(uint32_t crc, const void *data, size_t size);
