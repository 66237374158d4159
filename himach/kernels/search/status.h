/* What searches return. */
#ifndef HIMACH_KERNELS_STATUS_H
#define HIMACH_KERNELS_STATUS_H

enum {
    SEARCH_OK = 0,
    SEARCH_NO_MEMORY = -1,
    SEARCH_NOT_FINITE = -2, /* a coordinate is NaN or infinite */
};

#endif
