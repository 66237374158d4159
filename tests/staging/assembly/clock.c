/* A clock that is wrong by as many seconds as the file says that HISTORIES_CLOCK names; loaded before the C library. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const volatile long *wrong_by(void) {
    static const volatile long *told;
    if (told == NULL) {
        const char *path = getenv("HISTORIES_CLOCK"); // NOLINT(concurrency-mt-unsafe): nobody changes it
        int fd = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
        void *mapped = mmap(NULL, sizeof(long), PROT_READ, MAP_SHARED, fd, 0);
        (void)close(fd);
        if (fd < 0 || mapped == MAP_FAILED) {
            abort();
        }
        told = mapped;
    }
    return told;
}

int clock_gettime(clockid_t which, struct timespec *now) {
    int result = (int)syscall(SYS_clock_gettime, which, now);
    now->tv_sec += which == CLOCK_REALTIME ? *wrong_by() : 0;
    return result;
}

time_t time(time_t *told) {
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    if (told != NULL) {
        *told = now.tv_sec;
    }
    return now.tv_sec;
}
