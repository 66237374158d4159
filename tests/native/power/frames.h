/* Datasets of every kind, frames whose content is known by their number, and reading them back. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "bodhi.h"

enum {
    PUSHED,          /* by a simulation */
    CACHED,          /* of a trajectory */
    SLICES,          /* of each rank of a simulation */
    RANKS = 2,       /* so many */
    WHOLE = 4,       /* put together from these */
    COPIED,          /* from PUSHED to another store */
    PART,            /* some atoms of CACHED */
    DATASETS,        /* how many there are */
    SLICED = 300,    /* atoms of WHOLE */
    FRAMES = 40,     /* that histories write */
    LATE_FRAMES = 44 /* with those that are written at the end */
};

typedef struct {
    const char *store, *name, *generation;
    const char *attached; /* what says that it can be made again, so that its segments may be evicted; NULL: nothing */
} known_dataset;
extern const known_dataset known[DATASETS];

/* Make the contents; `large`: so large that a server fills segments with a few of them. */
void frames_make(int large);

/* A frame of a dataset; its arrays are nobody's to change. */
bodhi_frame frame_of(uint32_t dataset, int64_t number);

/* Read these frames (a bit each); whatever is delivered is right. Returns those that were. */
uint64_t frames_read(bodhi_dataset *opened, uint32_t dataset, uint64_t wanted);

/* The numbers of bits, ascending; returns how many. */
int64_t numbers_of(uint64_t frames, int64_t numbers[64]);

/* In which directory of its store a dataset lies. */
void known_directory(uint32_t dataset, char *directory, size_t size);

/* Open a dataset of the stores below `root`. */
BODHI_CHECKED int known_open_store(const char *root, uint32_t dataset, int flags, bodhi_store **store);
BODHI_CHECKED int known_open(bodhi_store *store, uint32_t dataset, int flags, bodhi_dataset **opened);
