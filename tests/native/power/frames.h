/* Frames whose content is known by their number, and reading them back. */
#ifndef POWER_FRAMES_H
#define POWER_FRAMES_H

#include <stdint.h>

#include "bodhi.h"

enum {
    DATASETS = 2,
    FRAMES = 40 /* that histories write */,
    LATE_FRAMES = 44 /* with those that are written at the end */
};
extern const char *const dataset_names[DATASETS];

/* Make the contents; `large`: so large that a server fills segments with a few of them. */
void frames_make(int large);

/* A frame of a dataset; its arrays are nobody's to change. */
bodhi_frame frame_of(uint32_t dataset, int64_t number);

/* Read these frames (a bit each); whatever is delivered is right. Returns those that were. */
uint64_t frames_read(bodhi_dataset *opened, uint32_t dataset, uint64_t wanted);

#endif
