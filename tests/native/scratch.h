/* A folder for what a test writes. */
#pragma once

#include <ftw.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

/* Make a folder of a new name in $TMPDIR, else in `otherwise`, and write its path; false if that fails. A socket in it
 * needs a short path. */
static inline bool make_scratch(char *path, size_t size, const char *otherwise) {
    const char *chosen = getenv("TMPDIR"); // NOLINT(concurrency-mt-unsafe): before any thread
    int n = snprintf(path, size, "%s/bodhi-test-XXXXXX", chosen == NULL || *chosen == '\0' ? otherwise : chosen);
    return n > 0 && (size_t)n < size && mkdtemp(path) != NULL;
}

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
