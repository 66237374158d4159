/* Removing what a test has left in a folder. */
#ifndef BODHI_TESTS_REMOVE_H
#define BODHI_TESTS_REMOVE_H

#include <ftw.h>
#include <stdio.h>
#include <sys/stat.h>

static inline int remove_one(const char *path, const struct stat *status, int type, struct FTW *walk) {
    (void)status;
    (void)type;
    (void)walk;
    return remove(path);
}

/* Remove a file, or a folder with all that is in it; nothing if it is not there. */
static inline void remove_all(const char *path) {
    (void)nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

#endif
