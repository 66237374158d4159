/* Calls to the system that fail; see faults.h. */
#include "faults.h"

#include "base/io.h"
#include "check.h"

const char *const fault_names[] = {"none",           "broken sockets", "EINTR",  "short transfers",
                                   "no descriptors", "no space",       "EDQUOT", "EIO"};
static const int fault_errors[] = {0, ECONNRESET, EINTR, 0, EMFILE, ENOSPC, EDQUOT, EIO};

static atomic_int fault;
static atomic_long fault_at;
static atomic_bool fault_stays;
static atomic_long calls;
static bodhi_calls real;

enum {
    SOCKETS = 1 << BROKEN | 1 << INTERRUPTED,
    TRANSFERS = SOCKETS | 1 << CUT_SHORT,
    FULL = 1 << NO_SPACE | 1 << QUOTA,
    DISK = FULL | 1 << BAD_DISK,
};

/* Whether this call fails, given the faults that can hit it. */
static bool fails(unsigned faults) {
    int now = atomic_load(&fault);
    if (now == NO_FAULT || (faults & 1U << now) == 0) {
        return false;
    }
    long call = atomic_fetch_add(&calls, 1) + 1;
    long at = atomic_load(&fault_at);
    if (call < at || (call > at && !atomic_load(&fault_stays))) {
        return false;
    }
    errno = fault_errors[now];
    return true;
}

static bool is_short(void) {
    return atomic_load(&fault) == CUT_SHORT;
}

/* The first part of some, cut to half. */
static struct iovec half_of(const struct iovec *parts) {
    return (struct iovec){.iov_base = parts->iov_base, .iov_len = parts->iov_len / 2 + 1};
}

/* A call that fails `when` one of these faults hits it. */
#define FAULT(name, parameters, arguments, when)                                                                       \
    static int fault_##name parameters {                                                                               \
        return fails(when) ? -1 : real.name arguments;                                                                 \
    }

FAULT(socket, (int family, int type, int protocol), (family, type, protocol), 1 << NO_DESCRIPTORS)

static int fault_connect(int fd, const struct sockaddr *name, socklen_t size) {
    bool hit = fails(SOCKETS);
    int error = errno;
    if (!hit || error == EINTR) { /* an interrupted connect goes on by itself */
        int result = real.connect(fd, name, size);
        errno = hit ? error : errno;
        return hit ? -1 : result;
    }
    return -1;
}

FAULT(accept4, (int fd, struct sockaddr *name, socklen_t *size, int flags), (fd, name, size, flags),
      SOCKETS | 1 << NO_DESCRIPTORS)

static ssize_t fault_send(int fd, const void *data, size_t size, int flags) {
    bool hit = fails(TRANSFERS);
    return hit && !is_short() ? -1 : real.send(fd, data, hit ? 1 : size, flags);
}

static ssize_t fault_recv(int fd, void *data, size_t size, int flags) {
    bool hit = fails(TRANSFERS);
    return hit && !is_short() ? -1 : real.recv(fd, data, hit ? 1 : size, flags);
}

static ssize_t fault_sendmsg(int fd, const struct msghdr *message, int flags) {
    bool hit = fails(TRANSFERS | 1 << NO_DESCRIPTORS);
    if (hit && is_short()) {
        struct iovec part = {.iov_base = message->msg_iov->iov_base, .iov_len = 1};
        struct msghdr cut = *message;
        cut.msg_iov = &part;
        cut.msg_iovlen = 1;
        return real.sendmsg(fd, &cut, flags);
    }
    return hit ? -1 : real.sendmsg(fd, message, flags);
}

static ssize_t fault_recvmsg(int fd, struct msghdr *message, int flags) {
    bool hit = fails(TRANSFERS | 1 << NO_DESCRIPTORS);
    if (hit && atomic_load(&fault) == NO_DESCRIPTORS) { /* as the kernel does: the bytes come, the descriptors do not */
        message->msg_controllen = 0;
        return real.recvmsg(fd, message, flags);
    }
    if (hit && is_short()) {
        message->msg_iov->iov_len = 1;
        return real.recvmsg(fd, message, flags);
    }
    return hit ? -1 : real.recvmsg(fd, message, flags);
}

FAULT(poll, (struct pollfd * polled, nfds_t n, int timeout), (polled, n, timeout), SOCKETS)

static int fault_epoll_ctl(int epoll, int operation, int fd, struct epoll_event *event) {
    return operation != EPOLL_CTL_DEL && fails(1 << NO_SPACE) ? -1 : real.epoll_ctl(epoll, operation, fd, event);
}

FAULT(epoll_wait, (int epoll, struct epoll_event *events, int n, int timeout), (epoll, events, n, timeout),
      1 << INTERRUPTED | 1 << BAD_DISK)

static int fault_openat(int directory, const char *path, int flags, mode_t mode) {
    unsigned faults = 1 << NO_DESCRIPTORS | 1 << INTERRUPTED | 1 << BAD_DISK;
    faults |= (flags & O_CREAT) != 0 ? (unsigned)FULL : 0U;
    return fails(faults) ? -1 : real.openat(directory, path, flags, mode);
}

static int fault_close(int fd) {
    int result = real.close(fd);
    return fails(1 << BAD_DISK) ? -1 : result;
}

FAULT(fcntl, (int fd, int command, void *argument), (fd, command, argument), 1 << INTERRUPTED | 1 << BAD_DISK)

static ssize_t fault_preadv2(int fd, const struct iovec *parts, int n, off_t offset, int flags) {
    bool hit = fails(1 << INTERRUPTED | 1 << CUT_SHORT | 1 << BAD_DISK);
    struct iovec half = half_of(parts);
    return hit && !is_short() ? -1 : real.preadv2(fd, hit ? &half : parts, hit ? 1 : n, offset, flags);
}

static ssize_t fault_pwritev(int fd, const struct iovec *parts, int n, off_t offset) {
    if (!fails(1 << INTERRUPTED | 1 << CUT_SHORT | DISK)) {
        return real.pwritev(fd, parts, n, offset);
    }
    struct iovec half = half_of(parts);
    int error = errno;
    ssize_t put = error == EINTR ? -1 : real.pwritev(fd, &half, 1, offset); /* what failed may be written in part */
    errno = error;
    return is_short() ? put : -1;
}

FAULT(fdatasync, (int fd), (fd), DISK)
FAULT(ftruncate, (int fd, off_t length), (fd, length), 1 << INTERRUPTED | DISK)
FAULT(fstat, (int fd, struct stat *status), (fd, status), 1 << BAD_DISK)
FAULT(fstatat, (int directory, const char *path, struct stat *status, int flags), (directory, path, status, flags),
      1 << BAD_DISK)
FAULT(dup3, (int fd, int onto, int flags), (fd, onto, flags), 1 << INTERRUPTED | 1 << BAD_DISK)
FAULT(unlinkat, (int directory, const char *path, int flags), (directory, path, flags), 1 << BAD_DISK)
FAULT(renameat, (int a, const char *b, int c, const char *d), (a, b, c, d), DISK)
FAULT(linkat, (int a, const char *b, int c, const char *d, int flags), (a, b, c, d, flags), DISK)
FAULT(mkdirat, (int directory, const char *path, mode_t mode), (directory, path, mode), DISK)

void install_faults(void) {
    real = bodhi_io;
    bodhi_io.socket = fault_socket;
    bodhi_io.connect = fault_connect;
    bodhi_io.accept4 = fault_accept4;
    bodhi_io.send = fault_send;
    bodhi_io.recv = fault_recv;
    bodhi_io.sendmsg = fault_sendmsg;
    bodhi_io.recvmsg = fault_recvmsg;
    bodhi_io.poll = fault_poll;
    bodhi_io.epoll_ctl = fault_epoll_ctl;
    bodhi_io.epoll_wait = fault_epoll_wait;
    bodhi_io.openat = fault_openat;
    bodhi_io.close = fault_close;
    bodhi_io.fcntl = fault_fcntl;
    bodhi_io.preadv2 = fault_preadv2;
    bodhi_io.pwritev = fault_pwritev;
    bodhi_io.fdatasync = fault_fdatasync;
    bodhi_io.ftruncate = fault_ftruncate;
    bodhi_io.fstat = fault_fstat;
    bodhi_io.fstatat = fault_fstatat;
    bodhi_io.dup3 = fault_dup3;
    bodhi_io.unlinkat = fault_unlinkat;
    bodhi_io.renameat = fault_renameat;
    bodhi_io.linkat = fault_linkat;
    bodhi_io.mkdirat = fault_mkdirat;
}

void remove_faults(void) {
    bodhi_io = real;
}

void begin_fault(enum fault kind, long at, bool stays) {
    atomic_store(&calls, 0);
    atomic_store(&fault_at, at);
    atomic_store(&fault_stays, stays);
    atomic_store(&fault, kind);
}

long end_fault(void) {
    atomic_store(&fault, NO_FAULT);
    return atomic_load(&calls);
}

enum fault present_fault(void) {
    return (enum fault)atomic_load(&fault);
}
