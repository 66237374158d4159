/* Sealing: the table of a segment goes from every process's memory to a file beside it (segments/frame_table.h). */
#ifndef BODHI_SEALING_H
#define BODHI_SEALING_H

#include "store/dataset.h"
#include "write/quota.h"

enum { SEAL_LEAST = 4096 }; /* frames that are not sealed, or sealed and dropped: they take 100 kB of every process */

/* Seal what was appended to a segment, if at least `least` frames and there is room. The mutex is not held. */
void seal_appended(bodhi_dataset *dataset, uint32_t ordinal, uint64_t least, room *r);

#endif
