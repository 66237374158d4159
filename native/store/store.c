/* Opening stores: where they may lie, whose they are, and which one it is. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/io.h"
#include "base/status.h"
#include "bodhi.h"
#include "store/dataset.h"

static const struct {
    uint32_t magic;
    const char *name;
} network_file_systems[] = {
    {0x6969, "nfs"},        {0xFF534D42, "cifs"}, {0xFE534D42, "smb2"},     {0x517B, "smb"},
    {0x0BD00BD0, "lustre"}, {0x47504653, "gpfs"}, {0x19830326, "beegfs"},   {0x00C36400, "ceph"},
    {0x5346414F, "afs"},    {0x73757245, "coda"}, {0xAAD7AAEA, "panfs"},    {0x7461636F, "ocfs2"},
    {0x01161970, "gfs2"},   {0x6B414653, "kafs"}, {0x20030528, "orangefs"}, {0x65735546, "fuse"},
};

/* Whether the device is mounted as a FUSE file system that is known to be local (such as an overlay of a container). */
static bool is_local_fuse(dev_t device) {
    FILE *mounts = fopen("/proc/self/mountinfo", "re");
    if (mounts == NULL) {
        return false;
    }
    char line[4096];
    char device_field[32];
    bool local = false;
    (void)snprintf(device_field, sizeof device_field, " %u:%u ", (unsigned)(device >> 8 & 0xFFF),
                   (unsigned)(device & 0xFF));
    while (fgets(line, sizeof line, mounts) != NULL) {
        const char *type = strstr(line, " - ");
        if (type != NULL && strstr(line, device_field) != NULL) {
            local = strncmp(type, " - fuseblk ", 11) == 0 || strncmp(type, " - fuse.fuse-overlayfs ", 23) == 0;
        }
    }
    (void)fclose(mounts);
    return local;
}

static int check_file_system(int fd, const char *path, dev_t device) {
    struct statfs status;
    if (bodhi_io.fstatfs(fd, &status) != 0) {
        return bodhi_fail_system(errno, "statfs", path);
    }
    uint32_t magic = (uint32_t)status.f_type;
    for (size_t i = 0; i < sizeof network_file_systems / sizeof *network_file_systems; i++) {
        if (network_file_systems[i].magic == magic && !(magic == 0x65735546 && is_local_fuse(device))) {
            return bodhi_fail(BODHI_ERROR_NETWORK,
                              "%s lies on a network file system (%s), where every node would claim every frame; "
                              "choose a directory on a local disk",
                              path, network_file_systems[i].name);
        }
    }
    return BODHI_OK;
}

static int check_owner(const struct stat *status, const char *path, int flags) {
    if ((flags & BODHI_READ_ONLY) != 0) {
        return BODHI_OK;
    }
    if (status->st_uid != geteuid()) {
        return bodhi_fail(BODHI_ERROR_UNSAFE, "%s belongs to user %u, not to user %u who wants to keep frames there",
                          path, (unsigned)status->st_uid, (unsigned)geteuid());
    }
    if ((status->st_mode & (S_IWGRP | S_IWOTH)) != 0) {
        return bodhi_fail(BODHI_ERROR_UNSAFE, "%s may be written by %s (mode %o); make it 700: chmod go-w %s", path,
                          (status->st_mode & S_IWOTH) != 0 ? "anybody" : "its group",
                          (unsigned)(status->st_mode & 07777), path);
    }
    return BODHI_OK;
}

/* Read the identity file into `parsed`. Returns a status; NOT_FOUND without a message if there is none. */
static int read_identity(bodhi_store *store, enum parsed *parsed) {
    unsigned char data[IDENTITY_BYTES];
    int fd = io_open(store->fd, "identity", O_RDONLY);
    if (fd < 0) {
        return errno == ENOENT ? BODHI_ERROR_NOT_FOUND : bodhi_fail_system(errno, "open of identity", store->path);
    }
    unsigned version = 0;
    ssize_t got = io_read(fd, data, sizeof data, 0, READ_ANY);
    io_drop(fd);
    if (got < 0) {
        return bodhi_fail_system(errno, "read of identity", store->path);
    }
    *parsed = parse_identity(data, (size_t)got, store->identity, &version);
    if (*parsed == PARSED_VERSION) {
        return bodhi_fail(BODHI_ERROR_VERSION,
                          "%s is a store of format version %u; this himach reads version %d: use a newer himach, or "
                          "another directory",
                          store->path, version, FORMAT_VERSION);
    }
    return BODHI_OK;
}

static int make_identity(bodhi_store *store, bool replace) {
    unsigned char data[IDENTITY_BYTES];
    if (!io_random(store->identity, sizeof store->identity)) {
        return bodhi_fail_system(errno, "getrandom", store->path);
    }
    write_identity(data, store->identity);
    if (io_write_file(store->fd, "identity", data, sizeof data, replace ? FILE_REPLACE : FILE_NEW)) {
        return BODHI_OK;
    }
    if (errno != EEXIST) {
        return bodhi_fail_system(errno, "write of identity", store->path);
    }
    enum parsed parsed; /* another process was first: its identity counts */
    return read_identity(store, &parsed);
}

static int identify(bodhi_store *store) {
    enum parsed parsed = PARSED;
    int status = read_identity(store, &parsed);
    bool writable = (store->flags & BODHI_READ_ONLY) == 0;
    if (status == BODHI_ERROR_NOT_FOUND) {
        return (store->flags & BODHI_CREATE) != 0 && writable
                   ? make_identity(store, false)
                   : bodhi_fail(BODHI_ERROR_NOT_FOUND, "%s is not a frame store: it has no identity file", store->path);
    }
    return status == BODHI_OK && parsed != PARSED && writable ? make_identity(store, true) : status;
}

static int open_directory(bodhi_store *store) {
    if ((store->flags & BODHI_CREATE) != 0 && bodhi_io.mkdirat(AT_FDCWD, store->path, 0700) != 0 && errno != EEXIST) {
        return bodhi_fail_system(errno, "mkdir", store->path);
    }
    store->fd = io_open(AT_FDCWD, store->path, O_RDONLY | O_DIRECTORY);
    if (store->fd < 0) {
        return errno == ENOENT ? bodhi_fail(BODHI_ERROR_NOT_FOUND, "%s: there is no such store", store->path)
                               : bodhi_fail_system(errno, "open", store->path);
    }
    struct stat status;
    if (bodhi_io.fstat(store->fd, &status) != 0) {
        return bodhi_fail_system(errno, "fstat", store->path);
    }
    int result = check_owner(&status, store->path, store->flags);
    if (result == BODHI_OK && (store->flags & BODHI_ALLOW_NETWORK) == 0) {
        result = check_file_system(store->fd, store->path, status.st_dev);
    }
    return result == BODHI_OK ? identify(store) : result;
}

int bodhi_open(const char *directory, int flags, bodhi_store **store) {
    if (directory == NULL || store == NULL || *directory == '\0') {
        return bodhi_fail(BODHI_ERROR_ARGUMENT, "directory and store must be given");
    }
    bodhi_store *opened = calloc(1, sizeof *opened);
    char *path = strdup(directory);
    if (opened == NULL || path == NULL) {
        free(opened);
        free(path);
        return bodhi_fail_memory();
    }
    *opened = (bodhi_store){.fd = -1, .flags = flags, .path = path};
    int status = open_directory(opened);
    if (status != BODHI_OK) {
        bodhi_close(opened);
        return status;
    }
    *store = opened;
    return BODHI_OK;
}

void bodhi_identity(const bodhi_store *store, uint8_t identity[16]) {
    memcpy(identity, store->identity, 16);
}

void bodhi_store_set_quota(bodhi_store *store, int64_t bytes) {
    store->quota = bytes < 0 ? 0 : (uint64_t)bytes;
}

void bodhi_close(bodhi_store *store) {
    if (store != NULL) {
        io_drop(store->fd);
        free(store->path);
        free(store);
    }
}
