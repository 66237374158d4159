/* System calls and the loops around them; see io.h. */
#include "base/io.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/random.h>
#include <unistd.h>

static int call_openat(int directory, const char *path, int flags, mode_t mode) {
    return openat(directory, path, flags, mode);
}

static int call_fcntl(int fd, int command, void *argument) {
    return fcntl(fd, command, argument);
}

/* glibc declares the addresses of these two as a union. */
static int call_connect(int fd, const struct sockaddr *name, socklen_t size) {
    return connect(fd, name, size);
}

static int call_accept4(int fd, struct sockaddr *name, socklen_t *size, int flags) {
    return accept4(fd, name, size, flags);
}

bodhi_calls bodhi_io = {
    .openat = call_openat,
    .close = close,
    .preadv2 = preadv2,
    .pwritev = pwritev,
    .fdatasync = fdatasync,
    .syncfs = syncfs,
    .ftruncate = ftruncate,
    .fstat = fstat,
    .fstatat = fstatat,
    .utimensat = utimensat,
    .dup3 = dup3,
    .fstatfs = fstatfs,
    .fcntl = call_fcntl,
    .unlinkat = unlinkat,
    .renameat = renameat,
    .linkat = linkat,
    .mkdirat = mkdirat,
    .getrandom = getrandom,
    .socket = socket,
    .connect = call_connect,
    .accept4 = call_accept4,
    .send = send,
    .recv = recv,
    .sendmsg = sendmsg,
    .recvmsg = recvmsg,
    .poll = poll,
    .epoll_ctl = epoll_ctl,
    .epoll_wait = epoll_wait,
};

int io_open(int directory, const char *path, int flags) {
    int fd;
    do {
        fd = bodhi_io.openat(directory, path, flags | O_CLOEXEC, 0600);
    } while (fd < 0 && errno == EINTR);
    return fd;
}

ssize_t io_read(int fd, void *buffer, size_t size, uint64_t offset, enum read_mode mode) {
    size_t done = 0;
    while (done < size) {
        struct iovec part = {.iov_base = (char *)buffer + done, .iov_len = size - done};
        ssize_t got = bodhi_io.preadv2(fd, &part, 1, (off_t)(offset + done), mode == READ_CACHED ? RWF_NOWAIT : 0);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0 && done == 0 && !(mode == READ_CACHED && (errno == EAGAIN || errno == EOPNOTSUPP))) {
            return -1;
        }
        if (got <= 0) {
            break;
        }
        done += (size_t)got;
    }
    return (ssize_t)done;
}

bool io_write(int fd, const void *data, size_t size, uint64_t offset) {
    for (size_t done = 0; done < size;) {
        const struct iovec part = {.iov_base = (char *)(uintptr_t)data + done, .iov_len = size - done};
        ssize_t put = bodhi_io.pwritev(fd, &part, 1, (off_t)(offset + done));
        if (put < 0 && errno == EINTR) {
            continue;
        }
        if (put <= 0) {
            errno = put == 0 ? ENOSPC : errno;
            return false;
        }
        done += (size_t)put;
    }
    return true;
}

bool io_replace(int fd, int onto) {
    int result;
    do {
        result = bodhi_io.dup3(fd, onto, O_CLOEXEC);
    } while (result < 0 && (errno == EINTR || errno == EBUSY));
    return result >= 0;
}

bool io_status(int directory, const char *name, struct stat *status) {
    return bodhi_io.fstatat(directory, name, status, AT_SYMLINK_NOFOLLOW) == 0;
}

bool io_truncate(int fd, uint64_t length) {
    int result;
    do {
        result = bodhi_io.ftruncate(fd, (off_t)length);
    } while (result < 0 && errno == EINTR);
    return result == 0;
}

bool io_sync(int fd) {
    return bodhi_io.fdatasync(fd) == 0;
}

bool io_sync_parent(int directory) {
    int parent = io_open(directory, "..", O_RDONLY | O_DIRECTORY);
    if (parent < 0) {
        return (errno == EACCES || errno == EPERM) && bodhi_io.syncfs(directory) == 0;
    }
    bool done = io_sync(parent);
    io_drop(parent);
    return done;
}

bool io_close(int fd) {
    return bodhi_io.close(fd) == 0; /* not again on EINTR: Linux has closed it */
}

void io_drop(int fd) {
    int error = errno;
    if (fd >= 0) {
        (void)io_close(fd);
    }
    errno = error;
}

/* --- Locks ------------------------------------------------------------------------------------------------------- */

static int lock_byte(int fd, int command, short type, uint64_t byte, struct flock *out) {
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)byte, .l_len = 1, .l_pid = 0};
    int result;
    do {
        result = bodhi_io.fcntl(fd, command, &lock);
    } while (result < 0 && errno == EINTR);
    if (out != NULL) {
        *out = lock;
    }
    return result;
}

enum lock_result io_lock(int fd, uint64_t byte, bool exclusive) {
    if (lock_byte(fd, F_OFD_SETLK, exclusive ? F_WRLCK : F_RDLCK, byte, NULL) == 0) {
        return LOCK_GOT;
    }
    return errno == EAGAIN || errno == EACCES ? LOCK_HELD : LOCK_FAILED;
}

void io_unlock(int fd, uint64_t byte) {
    (void)lock_byte(fd, F_OFD_SETLK, F_UNLCK, byte, NULL);
}

bool io_locked(int fd, uint64_t byte) {
    struct flock blocker;
    return lock_byte(fd, F_OFD_GETLK, F_RDLCK, byte, &blocker) == 0 && blocker.l_type != F_UNLCK;
}

/* --- Directories ------------------------------------------------------------------------------------------------- */

DIR *io_list(int directory, const char *path) {
    int fd = io_open(directory, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    DIR *listed = fd < 0 ? NULL : fdopendir(fd);
    if (listed == NULL) {
        io_drop(fd);
    }
    return listed;
}

/* --- Small files ------------------------------------------------------------------------------------------------- */

bool io_random(void *buffer, size_t size) {
    ssize_t got;
    do {
        got = bodhi_io.getrandom(buffer, size, 0);
    } while (got < 0 && errno == EINTR);
    return got == (ssize_t)size;
}

bool io_write_file(int directory, const char *name, const void *data, size_t size, enum file_end how) {
    uint64_t random;
    char temporary[24];
    if (!io_random(&random, sizeof random)) {
        return false;
    }
    (void)snprintf(temporary, sizeof temporary, "tmp-%016" PRIx64, random);
    int fd = io_open(directory, temporary, O_WRONLY | O_CREAT | O_EXCL);
    if (fd < 0) {
        return false;
    }
    bool done = io_write(fd, data, size, 0) && (how == FILE_UNSYNCED || io_sync(fd));
    if (done) {
        done = io_close(fd);
    } else {
        io_drop(fd);
    }
    if (done) {
        done = (how != FILE_NEW ? bodhi_io.renameat(directory, temporary, directory, name)
                                : bodhi_io.linkat(directory, temporary, directory, name, 0)) == 0;
    }
    int error = errno;
    if (!done || how == FILE_NEW) {
        (void)bodhi_io.unlinkat(directory, temporary, 0);
    }
    errno = error;
    return done;
}
