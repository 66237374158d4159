/* What was synced; see syncs.h. */
#include "syncs.h"

#include <dirent.h>

#include "../check.h"
#include "base/io.h"

enum { MOST = 64 };

atomic_bool syncs_held, sync_fails;
atomic_int syncs_begun;
static _Atomic ino_t unsynced; /* of which a sync has failed: never tried again */
static _Atomic ino_t synced[MOST];
static atomic_int n_synced;

static int noted_fdatasync(int fd) {
    struct stat status;
    CHECK(fstat(fd, &status) == 0 && status.st_ino != atomic_load(&unsynced));
    (void)atomic_fetch_add(&syncs_begun, 1);
    while (atomic_load(&syncs_held)) {
        (void)usleep(1000);
    }
    if (S_ISREG(status.st_mode) && atomic_exchange(&sync_fails, false)) {
        atomic_store(&unsynced, status.st_ino);
        errno = ENOSPC; /* as of a file system that finds room for what was written only now */
        return -1;
    }
    int result = fdatasync(fd);
    int i = atomic_fetch_add(&n_synced, 1);
    CHECK(result == 0 && i < MOST);
    atomic_store(&synced[i], status.st_ino);
    return result;
}

void watch_syncs(void) {
    bodhi_io.fdatasync = noted_fdatasync;
    forget_syncs();
}

void forget_syncs(void) {
    atomic_store(&n_synced, 0);
    atomic_store(&unsynced, 0);
}

bool is_synced(const char *path) {
    struct stat status;
    CHECK(stat(path, &status) == 0);
    int i = 0;
    while (i < atomic_load(&n_synced) && atomic_load(&synced[i]) != status.st_ino) {
        i++;
    }
    return i < atomic_load(&n_synced);
}

int count_descriptors(void) {
    int n = 0;
    DIR *listed = opendir("/proc/self/fd");
    while (readdir(listed) != NULL) {
        n++;
    }
    (void)closedir(listed);
    return n;
}
