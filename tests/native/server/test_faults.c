/* A server, a pusher and a reader of which the Nth system call fails, for every N, on either side: nothing crashes or
 * hangs, and what was acknowledged is there. test_store.c does the same to the store alone. */
#include "../dials.h"
#include "../scratch.h"
#include "../sockets.h"
#include "base/clock.h"
#include "base/io.h"
#include "net/served.h"
#include "server/serve.h"

char doing[256];

enum fault { NO_FAULT, BROKEN, INTERRUPTED, CUT_SHORT, NO_DESCRIPTORS, NO_SPACE, BAD_DISK, N_FAULTS };

static const char *const fault_names[] = {"none",           "broken sockets", "EINTR", "short transfers",
                                          "no descriptors", "no space",       "EIO"};
static const int fault_errors[] = {0, ECONNRESET, EINTR, 0, EMFILE, ENOSPC, EIO};

static atomic_int fault;
static atomic_long fault_at; /* the call that fails, from 1 */
static atomic_long calls;
static bodhi_calls real;

/* --- Faults ------------------------------------------------------------------------------------------------------ */

/* Whether this call fails, given the faults that can hit it. */
static bool fails(unsigned faults) {
    int now = atomic_load(&fault);
    if (now == NO_FAULT || (faults & 1U << now) == 0 || atomic_fetch_add(&calls, 1) + 1 != atomic_load(&fault_at)) {
        return false;
    }
    errno = fault_errors[now];
    return true;
}

enum { SOCKETS = 1 << BROKEN | 1 << INTERRUPTED, TRANSFERS = SOCKETS | 1 << CUT_SHORT };

static bool is_short(void) {
    return atomic_load(&fault) == CUT_SHORT;
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
    return fails(faults | ((flags & O_CREAT) != 0 ? 1U << NO_SPACE : 0U)) ? -1
                                                                          : real.openat(directory, path, flags, mode);
}

static int fault_fcntl(int fd, int command, void *argument) {
    unsigned faults = command == F_DUPFD_CLOEXEC ? 1 << NO_DESCRIPTORS : 1 << INTERRUPTED;
    return fails(faults) ? -1 : real.fcntl(fd, command, argument);
}

static ssize_t fault_pwritev(int fd, const struct iovec *parts, int n, off_t offset) {
    bool hit = fails(1 << INTERRUPTED | 1 << CUT_SHORT | 1 << NO_SPACE | 1 << BAD_DISK);
    if (hit && is_short()) {
        struct iovec part = {.iov_base = parts->iov_base, .iov_len = parts->iov_len / 2 + 1};
        return real.pwritev(fd, &part, 1, offset);
    }
    return hit ? -1 : real.pwritev(fd, parts, n, offset);
}

static ssize_t fault_preadv2(int fd, const struct iovec *parts, int n, off_t offset, int flags) {
    return fails(1 << INTERRUPTED | 1 << BAD_DISK) ? -1 : real.preadv2(fd, parts, n, offset, flags);
}

FAULT(fdatasync, (int fd), (fd), 1 << NO_SPACE | 1 << BAD_DISK)
FAULT(fstatat, (int directory, const char *path, struct stat *status, int flags), (directory, path, status, flags),
      1 << BAD_DISK)
FAULT(dup3, (int fd, int onto, int flags), (fd, onto, flags), 1 << INTERRUPTED | 1 << BAD_DISK)
FAULT(ftruncate, (int fd, off_t length), (fd, length), 1 << INTERRUPTED | 1 << BAD_DISK)

static void install_faults(void) {
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
    bodhi_io.fcntl = fault_fcntl;
    bodhi_io.pwritev = fault_pwritev;
    bodhi_io.preadv2 = fault_preadv2;
    bodhi_io.fdatasync = fault_fdatasync;
    bodhi_io.fstatat = fault_fstatat;
    bodhi_io.dup3 = fault_dup3;
    bodhi_io.ftruncate = fault_ftruncate;
}

/* --- A server and its clients ------------------------------------------------------------------------------------ */

enum { WORKERS = 6, FRAMES = 6, ATOMS = 40, PATIENCE_MS = 150, MUCH_PATIENCE_MS = 5000 };

static char root[64];
static char store_path[128];
static char socket_path[128];

/* Where nothing may be lost, a busy machine is given time. */
static int patience(void) {
    int now = atomic_load(&fault);
    return now == INTERRUPTED || now == CUT_SHORT ? MUCH_PATIENCE_MS : PATIENCE_MS;
}

static float value_of(int64_t number, int64_t i) {
    return (float)(number * 1000 + i);
}

static void *run(void *server) {
    (void)!bodhi_server_run(server); /* it may end by a fault: its clients then have to see to themselves */
    return NULL;
}

/* Push frames; acknowledged[number] is set for what was acknowledged. */
static void push_frames(bool *acknowledged) {
    const char *servers[1] = {socket_path};
    bodhi_push_options options = {.durable = 1, .timeout_ms = patience(), .batch_bytes = 1000};
    bodhi_pusher *pusher;
    if (bodhi_push_open(servers, 1, "run", NULL, 0, &options, &pusher) != BODHI_OK) {
        return;
    }
    int64_t taken = 0;
    for (int64_t number = 0; number < FRAMES; number++) {
        float positions[ATOMS * 3];
        for (int64_t i = 0; i < (int64_t)ATOMS * 3; i++) {
            positions[i] = value_of(number, i);
        }
        bodhi_frame frame = {.number = number, .n_atoms = ATOMS, .positions = positions};
        if (bodhi_push(pusher, &frame) != BODHI_OK) {
            break;
        }
        taken = number + 1;
        if (number % 2 == 1 && bodhi_push_flush(pusher) == BODHI_OK) {
            memset(acknowledged, 1, (size_t)taken);
        }
    }
    if (bodhi_push_close(pusher) == BODHI_OK) {
        memset(acknowledged, 1, (size_t)taken);
    }
}

/* Ask where frames lie; an answer is true. */
static void read_places(void) {
    static const uint8_t no_token[WIRE_TOKEN];
    unsigned char numbers[8 * FRAMES];
    wire_link link = {.fd = -1};
    for (uint64_t i = 0; i < FRAMES; i++) {
        put64(numbers + 8 * i, i);
    }
    wire_part part = {numbers, sizeof numbers};
    int64_t deadline = now_ms() + patience();
    if (link_dial(&link, socket_path, geteuid(), NULL, 0, deadline) != BODHI_OK) {
        return;
    }
    int status = link_open(&link, 0, no_token, "run", NULL, 0, "", NULL, deadline);
    if (status == BODHI_OK) {
        const wire_question question = {.last = FRAMES};
        const wire_part asked = {&question, sizeof question};
        status = link_ask(&link, WIRE_RUNS, &asked, 1, deadline);
    }
    if (status == BODHI_OK) {
        status = link_ask(&link, WIRE_READ, &part, 1, deadline);
    }
    for (size_t i = 0; status == BODHI_OK && i < FRAMES; i++) {
        wire_place at;
        memcpy(&at, link.records + i * sizeof at, sizeof at);
        CHECK(at.descriptor >= -1 && (at.descriptor < link.n_descriptors || link.n_descriptors == 0));
    }
    link_close(&link);
}

/* Read frames by places that the server grants; what is delivered is right. */
static void read_served(void) {
    int64_t numbers[FRAMES + 1];
    served_dataset d = {.link = {.fd = -1}, .timeout_ms = patience()};
    bodhi_reader *reader = NULL;
    bodhi_frame frame;
    int status = link_dial(&d.link, socket_path, geteuid(), NULL, 0, now_ms() + patience());
    for (int i = 0; i <= FRAMES; i++) {
        numbers[i] = FRAMES - 1 - i; /* -1 is a miss */
    }
    (void)pthread_mutex_init(&d.mutex, NULL);
    if (status == BODHI_OK) {
        status = served_open(&d, "run", NULL, 0);
    }
    if (status == BODHI_OK) {
        status = served_reader_open(&d, numbers, FRAMES + 1, NULL, &reader);
    }
    for (int i = 0; status >= BODHI_OK && (status = bodhi_reader_next(reader, &frame)) != BODHI_END; i++) {
        CHECK(frame.number == numbers[i] && (status != BODHI_OK || frame.number >= 0));
        for (int64_t k = 0; status == BODHI_OK && k < frame.n_atoms * 3; k++) {
            CHECK(frame.positions[k] == value_of(frame.number, k));
        }
    }
    bodhi_reader_close(reader);
    served_free(&d);
    (void)pthread_mutex_destroy(&d.mutex);
}

static void live(bool *acknowledged) {
    int listener = listen_at(socket_path, SOCK_NONBLOCK);
    bodhi_serve_options options = {.listener = listener, .batch_ms = 50, .quota = 1 << 30};
    bodhi_server *server;
    pthread_t thread;
    if (bodhi_server_open(store_path, &options, &server) == BODHI_OK) {
        CHECK(pthread_create(&thread, NULL, run, server) == 0);
        push_frames(acknowledged);
        read_places();
        read_served();
        CHECK(write(bodhi_server_wake(server), "x", 1) == 1);
        CHECK(pthread_join(thread, NULL) == 0);
        bodhi_server_close(server);
    }
    (void)close(listener);
}

static void check_afterwards(const bool *acknowledged) {
    bodhi_store *store;
    bodhi_dataset *dataset;
    bodhi_reader *reader;
    bodhi_frame frame;
    int64_t numbers[FRAMES];
    int status;
    for (int i = 0; i < FRAMES; i++) {
        numbers[i] = i;
    }
    CHECK(bodhi_open(store_path, BODHI_CREATE, &store) == BODHI_OK);
    CHECK(bodhi_dataset_open(store, "run", NULL, 0, BODHI_CREATE, &dataset) == BODHI_OK);
    CHECK(bodhi_reader_open(dataset, numbers, FRAMES, NULL, &reader) == BODHI_OK);
    while ((status = bodhi_reader_next(reader, &frame)) != BODHI_END) {
        CHECK(status == BODHI_OK || !acknowledged[frame.number]);
        for (int64_t i = 0; status == BODHI_OK && i < frame.n_atoms * 3; i++) {
            CHECK(frame.positions[i] == value_of(frame.number, i));
        }
    }
    bodhi_reader_close(reader);
    bodhi_dataset_close(dataset);
    bodhi_close(store);
}

static void *hang(void *argument) {
    (void)argument;
    (void)sleep(60);
    (void)fprintf(stderr, "hung with %s, call %ld\n", fault_names[atomic_load(&fault)], atomic_load(&fault_at));
    abort();
}

/* Every WORKERS-th call fails, from the `first` on, till there are no more. */
static void test_fault(int kind, int first) {
    long n = first;
    pthread_t watch;
    do {
        bool acknowledged[FRAMES] = {false};
        remove_all(store_path);
        CHECK(pthread_create(&watch, NULL, hang, NULL) == 0);
        DOING("%s, call %ld", fault_names[kind], n);
        atomic_store(&calls, 0);
        atomic_store(&fault_at, n);
        atomic_store(&fault, kind);
        live(acknowledged);
        atomic_store(&fault, NO_FAULT);
        CHECK(pthread_cancel(watch) == 0 && pthread_join(watch, NULL) == 0);
        CHECK(acknowledged[FRAMES - 1] || (kind != INTERRUPTED && kind != CUT_SHORT)); /* nothing is lost by these */
        check_afterwards(acknowledged);
        n += WORKERS;
    } while (atomic_load(&calls) >= n - WORKERS);
}

static int work(int worker) {
    CHECK(make_scratch(root, sizeof root, "/tmp"));
    (void)snprintf(store_path, sizeof store_path, "%s/store", root);
    (void)snprintf(socket_path, sizeof socket_path, "%s/socket", root);
    install_faults();
    for (int kind = BROKEN; kind < N_FAULTS; kind++) {
        test_fault(kind, worker + 1);
    }
    await_dials();
    bodhi_io = real;
    remove_all(root);
    return 0;
}

/* Waiting is most of the work, so that it is divided among processes. */
int main(void) {
    for (int i = 0; i < WORKERS; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            return work(i);
        }
    }
    int failed = 0;
    for (int status; wait(&status) > 0;) {
        failed += status != 0;
    }
    return failed > 0;
}
