/* System calls behind one table, of which tests make the Nth fail, and loops that finish what a call left undone. */
#pragma once

#include <dirent.h>
#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/vfs.h>

/* Every member behaves as the system call of its name: -1 and errno on failure. */
typedef struct {
    int (*openat)(int directory, const char *path, int flags, mode_t mode);
    int (*close)(int fd);
    ssize_t (*preadv2)(int fd, const struct iovec *parts, int n, off_t offset, int flags);
    ssize_t (*pwritev)(int fd, const struct iovec *parts, int n, off_t offset);
    int (*fdatasync)(int fd);
    int (*syncfs)(int fd);
    int (*ftruncate)(int fd, off_t length);
    int (*fstat)(int fd, struct stat *status);
    int (*fstatat)(int directory, const char *path, struct stat *status, int flags);
    int (*utimensat)(int directory, const char *path, const struct timespec times[2], int flags);
    int (*dup3)(int fd, int onto, int flags);
    int (*fstatfs)(int fd, struct statfs *status);
    int (*fcntl)(int fd, int command, void *argument);
    int (*unlinkat)(int directory, const char *path, int flags);
    int (*renameat)(int old_directory, const char *old_path, int new_directory, const char *new_path);
    int (*linkat)(int old_directory, const char *old_path, int new_directory, const char *new_path, int flags);
    int (*mkdirat)(int directory, const char *path, mode_t mode);
    ssize_t (*getrandom)(void *buffer, size_t size, unsigned flags);
    int (*socket)(int family, int type, int protocol);
    int (*connect)(int fd, const struct sockaddr *name, socklen_t size);
    int (*accept4)(int fd, struct sockaddr *name, socklen_t *size, int flags);
    ssize_t (*send)(int fd, const void *data, size_t size, int flags);
    ssize_t (*recv)(int fd, void *data, size_t size, int flags);
    ssize_t (*sendmsg)(int fd, const struct msghdr *message, int flags);
    ssize_t (*recvmsg)(int fd, struct msghdr *message, int flags);
    int (*poll)(struct pollfd *polled, nfds_t n, int timeout);
    int (*epoll_ctl)(int epoll, int operation, int fd, struct epoll_event *event);
    int (*epoll_wait)(int epoll, struct epoll_event *events, int n, int timeout);
} bodhi_calls;

/* The table in use. Replaced by tests only, while no other thread is in the library. */
extern bodhi_calls bodhi_io;

enum read_mode { READ_ANY, READ_CACHED /* only what the page cache has */ };

/* openat() with O_CLOEXEC, again on EINTR. */
int io_open(int directory, const char *path, int flags);

/* Read up to `size` bytes: less only at the file's or (READ_CACHED) the page cache's end, or before an error. */
ssize_t io_read(int fd, void *buffer, size_t size, uint64_t offset, enum read_mode mode);

/* Write all of it; false and errno on failure. A call that writes nothing counts as ENOSPC. */
bool io_write(int fd, const void *data, size_t size, uint64_t offset);

/* dup3() with O_CLOEXEC: `onto`, which other threads may use meanwhile, is then of what `fd` has open. */
bool io_replace(int fd, int onto);

/* fstatat() of the name itself, not of where it may point. */
bool io_status(int directory, const char *name, struct stat *status);

bool io_truncate(int fd, uint64_t length);

/* Never repeated: after a failed fsync nobody knows what is on disk. */
bool io_sync(int fd);

/* Sync the names in the directory that holds `directory`; where it may not be read, all of its file system. */
bool io_sync_parent(int directory);

bool io_close(int fd);

/* Close what may be open (-1: it is not), whatever comes of that; errno stays. */
void io_drop(int fd);

/* A lock on one byte of a file, which ends with the last descriptor of that open file. */
enum lock_byte { LOCK_WRITER = 0, LOCK_READERS = 1 }; /* of a segment */
enum lock_result { LOCK_GOT, LOCK_HELD, LOCK_FAILED /* errno */ };
enum lock_result io_lock(int fd, uint64_t byte, bool exclusive);
void io_unlock(int fd, uint64_t byte);
/* Whether another open file holds the byte exclusively; false where it cannot be told. */
bool io_locked(int fd, uint64_t byte);

/* The entries of a directory below `directory`, for readdir() and closedir(); NULL and errno on failure. */
DIR *io_list(int directory, const char *path);

enum file_end {
    FILE_NEW,     /* moved into place, synced; errno is EEXIST if something is there */
    FILE_REPLACE, /* the same over what is there */
    FILE_UNSYNCED /* over what is there, and not synced: a power cut may leave it torn */
};

/* Write a file under a temporary name, and move it into place. False and errno: nothing is left behind. */
bool io_write_file(int directory, const char *name, const void *data, size_t size, enum file_end how);

/* Fill `size` <= 256 random bytes. */
bool io_random(void *buffer, size_t size);
