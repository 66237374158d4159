/* The layer below the table of system calls that notes what changes on the disk; see disk.h. */
#include <stdarg.h>

#include "../check.h"
#include "base/io.h"
#include "base/memory.h"
#include "disk.h"

/* What was made under this inode number; the last one counts, since numbers are used again. */
typedef struct {
    ino_t inode;
    uint32_t node;
} known;

/* Over all that follows: a call and its note are one. Recursive, since `before_unlink` may note something. */
static pthread_mutex_t guard = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static bodhi_calls real;
static notes noted;
static known *inodes;
static size_t n_inodes, inode_capacity;
static uint32_t n_nodes;
static int64_t room;
static int syncs_to_failure;
static bool root_is_closed;
static chance names_drawn; /* goes on from life to life, so that no name comes twice */
static void (*before_unlink)(int directory, const char *name);

static const uint32_t NOWHERE = UINT32_MAX; /* not on our disk */

static uint32_t node_of(const struct stat *status) {
    for (size_t i = n_inodes; i-- > 0;) {
        if (inodes[i].inode == status->st_ino) {
            return inodes[i].node;
        }
    }
    return NOWHERE;
}

static uint32_t node_of_descriptor(int fd) {
    struct stat status;
    return fstat(fd, &status) == 0 ? node_of(&status) : NOWHERE;
}

static uint32_t add_inode(ino_t inode) {
    CHECK(ARRAY_GROW(inodes, inode_capacity, n_inodes + 1));
    inodes[n_inodes++] = (known){.inode = inode, .node = n_nodes};
    return n_nodes++;
}

/* The directory that a path lies in, and its last part. */
static uint32_t locate(int directory, const char *path, const char **name) {
    const char *slash = strrchr(path, '/');
    struct stat status;
    char parent[2 * PATH_BYTES];
    *name = slash == NULL ? path : slash + 1;
    if (slash == NULL) {
        return node_of_descriptor(directory);
    }
    (void)snprintf(parent, sizeof parent, "%.*s", (int)(slash - path), path);
    return stat(parent, &status) == 0 ? node_of(&status) : NOWHERE;
}

static note *add_note(enum note_kind kind, uint32_t node) {
    CHECK(ARRAY_GROW(noted.notes, noted.capacity, noted.n + 1));
    note *what = &noted.notes[noted.n++];
    *what = (note){.kind = kind, .node = node};
    return what;
}

static void add_named(enum note_kind kind, uint32_t node, uint32_t directory, const char *name, const char *old) {
    note *what = add_note(kind, node);
    what->directory = directory;
    (void)snprintf(what->name, sizeof what->name, "%s", name);
    (void)snprintf(what->old, sizeof what->old, "%s", old);
}

static bool is_full(void) {
    if (room == 0) {
        errno = ENOSPC;
    }
    return room == 0;
}

static void unlock(int error) {
    pthread_mutex_unlock(&guard);
    errno = error;
}

/* --- The calls --------------------------------------------------------------------------------------------------- */

static int noted_openat(int directory, const char *path, int flags, mode_t mode) {
    if (root_is_closed && strcmp(path, "..") == 0) {
        errno = EACCES;
        return -1;
    }
    if ((flags & O_CREAT) == 0) {
        return real.openat(directory, path, flags, mode);
    }
    struct stat status;
    const char *name;
    pthread_mutex_lock(&guard);
    bool there = fstatat(directory, path, &status, AT_SYMLINK_NOFOLLOW) == 0;
    int fd = !there && is_full() ? -1 : real.openat(directory, path, flags, mode);
    int error = errno;
    uint32_t in = fd < 0 || there ? NOWHERE : locate(directory, path, &name);
    if (in != NOWHERE) {
        CHECK(fstat(fd, &status) == 0);
        add_named(NOTE_CREATE, add_inode(status.st_ino), in, name, "");
    }
    unlock(error);
    return fd;
}

static int noted_mkdirat(int directory, const char *path, mode_t mode) {
    struct stat status;
    const char *name;
    pthread_mutex_lock(&guard);
    int result = is_full() ? -1 : real.mkdirat(directory, path, mode);
    int error = errno;
    uint32_t in = result != 0 ? NOWHERE : locate(directory, path, &name);
    if (in != NOWHERE) {
        CHECK(fstatat(directory, path, &status, 0) == 0);
        add_named(NOTE_MKDIR, add_inode(status.st_ino), in, name, "");
    }
    unlock(error);
    return result;
}

static size_t bytes_of(const struct iovec *parts, int n) {
    size_t sum = 0;
    for (int i = 0; i < n; i++) {
        sum += parts[i].iov_len;
    }
    return sum;
}

/* The first `size` bytes of the parts. */
static unsigned char *gather(const struct iovec *parts, int n, size_t size) {
    unsigned char *data = malloc(size + 1);
    CHECK(data != NULL);
    for (size_t at = 0; n > 0 && at < size; parts++, n--) {
        size_t part = parts->iov_len < size - at ? parts->iov_len : size - at;
        memcpy(data + at, parts->iov_base, part);
        at += part;
    }
    return data;
}

static ssize_t noted_pwritev(int fd, const struct iovec *parts, int n, off_t offset) {
    size_t size = bytes_of(parts, n);
    pthread_mutex_lock(&guard);
    if (room >= 0 && size > (uint64_t)room) { /* a full disk takes what still fits */
        size = (size_t)room;
    }
    struct iovec one = {.iov_base = gather(parts, n, size), .iov_len = size};
    ssize_t put = is_full() ? -1 : real.pwritev(fd, &one, 1, offset);
    int error = errno;
    uint32_t node = put <= 0 ? NOWHERE : node_of_descriptor(fd);
    if (node != NOWHERE) {
        room -= room > 0 ? put : 0;
        note *what = add_note(NOTE_WRITE, node);
        what->offset = (uint64_t)offset;
        what->data = one.iov_base;
        what->size = (size_t)put;
    } else {
        free(one.iov_base);
    }
    unlock(error);
    return put;
}

static int noted_ftruncate(int fd, off_t length) {
    pthread_mutex_lock(&guard);
    int result = real.ftruncate(fd, length);
    int error = errno;
    uint32_t node = result != 0 ? NOWHERE : node_of_descriptor(fd);
    if (node != NOWHERE) {
        add_note(NOTE_TRUNCATE, node)->offset = (uint64_t)length;
    }
    unlock(error);
    return result;
}

static int noted_fdatasync(int fd) {
    pthread_mutex_lock(&guard);
    bool fails = syncs_to_failure > 0 && --syncs_to_failure == 0;
    uint32_t node = node_of_descriptor(fd);
    if (node != NOWHERE) {
        (void)add_note(fails ? NOTE_SYNC_FAILED : NOTE_SYNC, node);
    }
    pthread_mutex_unlock(&guard);
    errno = fails ? EIO : errno;
    return fails ? -1 : 0; /* nothing of it has to reach a real disk */
}

static int noted_syncfs(int fd) {
    (void)fd;
    pthread_mutex_lock(&guard);
    (void)add_note(NOTE_SYNC_ALL, 0);
    pthread_mutex_unlock(&guard);
    return 0;
}

/* Names are drawn, so that a history can be lived again. */
static ssize_t drawn_getrandom(void *buffer, size_t size, unsigned flags) {
    (void)flags;
    pthread_mutex_lock(&guard);
    for (size_t i = 0; i < size; i++) {
        ((unsigned char *)buffer)[i] = (unsigned char)draw(&names_drawn, 256);
    }
    pthread_mutex_unlock(&guard);
    return (ssize_t)size;
}

static int noted_unlinkat(int directory, const char *path, int flags) {
    const char *name;
    pthread_mutex_lock(&guard);
    uint32_t in = locate(directory, path, &name);
    if (before_unlink != NULL && in != NOWHERE) {
        before_unlink(directory, path);
    }
    int result = real.unlinkat(directory, path, flags);
    int error = errno;
    if (result == 0 && in != NOWHERE) {
        add_named(NOTE_UNLINK, 0, in, name, "");
    }
    unlock(error);
    return result;
}

/* Note that `to` is now a name of what has it. */
static void note_new_name(enum note_kind kind, const char *from, int directory, const char *to) {
    struct stat status;
    const char *name;
    uint32_t in = locate(directory, to, &name);
    if (in != NOWHERE && fstatat(directory, to, &status, AT_SYMLINK_NOFOLLOW) == 0) {
        add_named(kind, node_of(&status), in, name, from);
    }
}

static int noted_renameat(int old_directory, const char *old_path, int directory, const char *path) {
    pthread_mutex_lock(&guard);
    int result = real.renameat(old_directory, old_path, directory, path);
    int error = errno;
    if (result == 0) {
        note_new_name(NOTE_RENAME, old_path, directory, path);
    }
    unlock(error);
    return result;
}

static int noted_linkat(int old_directory, const char *old_path, int directory, const char *path, int flags) {
    pthread_mutex_lock(&guard);
    int result = is_full() ? -1 : real.linkat(old_directory, old_path, directory, path, flags);
    int error = errno;
    if (result == 0) {
        note_new_name(NOTE_LINK, "", directory, path);
    }
    unlock(error);
    return result;
}

/* --- Attaching --------------------------------------------------------------------------------------------------- */

void disk_attach(const char *root, const image *from, void (*unlinking)(int directory, const char *name)) {
    struct stat status;
    CHECK(stat(root, &status) == 0);
    real = bodhi_io;
    noted = (notes){0};
    n_inodes = n_nodes = 0;
    (void)add_inode(status.st_ino);
    for (size_t i = 0; i < from->n; i++) {
        char path[2 * PATH_BYTES];
        (void)snprintf(path, sizeof path, "%s/%s", root, from->files[i].path);
        CHECK(stat(path, &status) == 0);
        (void)add_inode(status.st_ino);
    }
    room = -1;
    syncs_to_failure = 0;
    root_is_closed = false;
    before_unlink = unlinking;
    bodhi_io.openat = noted_openat;
    bodhi_io.mkdirat = noted_mkdirat;
    bodhi_io.pwritev = noted_pwritev;
    bodhi_io.ftruncate = noted_ftruncate;
    bodhi_io.fdatasync = noted_fdatasync;
    bodhi_io.syncfs = noted_syncfs;
    bodhi_io.getrandom = drawn_getrandom;
    bodhi_io.unlinkat = noted_unlinkat;
    bodhi_io.renameat = noted_renameat;
    bodhi_io.linkat = noted_linkat;
}

notes disk_detach(void) {
    bodhi_io = real;
    free(inodes);
    inodes = NULL;
    inode_capacity = 0;
    notes taken = noted;
    noted = (notes){0};
    return taken;
}

void disk_note(enum note_kind kind, uint32_t dataset, uint64_t frames) {
    pthread_mutex_lock(&guard);
    note *what = add_note(kind, 0);
    what->dataset = dataset;
    what->frames = frames;
    pthread_mutex_unlock(&guard);
}

void disk_say(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    pthread_mutex_lock(&guard);
    note *what = add_note(NOTE_WORDS, 0);
    // NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): it is started above
    (void)vsnprintf(what->name, sizeof what->name, format, arguments);
    pthread_mutex_unlock(&guard);
    va_end(arguments);
}

void disk_set_room(int64_t bytes) {
    pthread_mutex_lock(&guard);
    room = bytes;
    pthread_mutex_unlock(&guard);
}

void disk_draw_names(uint64_t first) {
    names_drawn.state = first;
}

void disk_close_root(void) {
    root_is_closed = true;
}

void disk_fail_sync(int n) {
    pthread_mutex_lock(&guard);
    syncs_to_failure = n;
    pthread_mutex_unlock(&guard);
}
