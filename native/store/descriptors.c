/* Descriptors of segments, which keep them from eviction. */
#include <errno.h>
#include <fcntl.h>

#include "base/io.h"
#include "store/dataset.h"

/* --- Descriptors ------------------------------------------------------------------------------------------------- */

static void close_segment(bodhi_dataset *dataset, segment *s) {
    io_drop(s->direct_fd);
    if (s->fd >= 0) {
        io_drop(s->fd);
        dataset->open_segments--;
    }
    s->fd = s->direct_fd = -1;
}

/* Close the segment that was idle for longest; false if none is idle. */
static bool close_idle(bodhi_dataset *dataset) {
    segment *oldest = NULL;
    for (size_t i = 0; i < dataset->n_segments; i++) {
        segment *s = dataset->segments[i];
        if (s->fd >= 0 && s->users == 0 && (oldest == NULL || s->used_at < oldest->used_at)) {
            oldest = s;
        }
    }
    if (oldest != NULL) {
        close_segment(dataset, oldest);
    }
    return oldest != NULL;
}

static int open_with_room(bodhi_dataset *dataset, const char *name, int flags) {
    int fd = io_open(dataset->fd, name, flags);
    while (fd < 0 && (errno == EMFILE || errno == ENFILE)) {
        int error = errno;
        if (!close_idle(dataset)) {
            errno = error;
            return -1;
        }
        fd = io_open(dataset->fd, name, flags);
    }
    return fd;
}

/* Lock a segment that was just opened against eviction; false and errno if that was quicker. */
static bool lock_against_eviction(int fd) {
    struct stat status;
    bool evicted = io_lock(fd, LOCK_READERS, false) == LOCK_HELD || /* just being evicted; other failures do no harm */
                   (bodhi_io.fstat(fd, &status) == 0 && status.st_nlink == 0);
    errno = evicted ? ENOENT : errno;
    return !evicted;
}

/* Open for reading. */
static bool open_pinned(bodhi_dataset *dataset, segment *s) {
    if (dataset->open_segments >= MAX_OPEN_SEGMENTS) {
        (void)close_idle(dataset);
    }
    int fd = open_with_room(dataset, s->name, O_RDONLY);
    if (fd < 0) {
        return false;
    }
    if (!lock_against_eviction(fd)) {
        io_drop(fd);
        errno = ENOENT;
        return false;
    }
    s->fd = fd;
    dataset->open_segments++;
    return true;
}

static int pin(bodhi_dataset *dataset, uint32_t ordinal, bool direct) {
    segment *s = dataset->segments[ordinal];
    if (s->gone) {
        errno = ENOENT;
        return -1;
    }
    if (s->fd < 0 && !open_pinned(dataset, s)) {
        if (errno == ENOENT) {
            dataset_forget(dataset, ordinal);
            errno = ENOENT;
        }
        return -1;
    }
    s->users++;
    s->used_at = ++dataset->clock;
    if (direct && s->direct_fd < 0) {
        s->direct_fd = open_with_room(dataset, s->name, O_RDONLY | O_DIRECT);
    }
    return direct && s->direct_fd >= 0 ? s->direct_fd : s->fd;
}

int dataset_pin(bodhi_dataset *dataset, uint32_t ordinal, bool direct) {
    pthread_mutex_lock(&dataset->mutex);
    int fd = pin(dataset, ordinal, direct);
    int error = errno;
    pthread_mutex_unlock(&dataset->mutex);
    errno = error;
    return fd;
}

void dataset_unpin(bodhi_dataset *dataset, uint32_t ordinal) {
    pthread_mutex_lock(&dataset->mutex);
    dataset->segments[ordinal]->users--;
    pthread_mutex_unlock(&dataset->mutex);
}

void dataset_remove_reader(bodhi_dataset *dataset) {
    pthread_mutex_lock(&dataset->mutex);
    dataset->readers--;
    while (dataset->readers == 0 && dataset->open_segments > 0 && close_idle(dataset)) {
    }
    pthread_mutex_unlock(&dataset->mutex);
}

static int share(const bodhi_dataset *dataset, const char *name) {
    int fd = io_open(dataset->fd, name, O_RDONLY);
    if (fd >= 0 && !lock_against_eviction(fd)) {
        io_drop(fd);
        errno = ENOENT;
        fd = -1;
    }
    return fd;
}

int dataset_share_segment(const bodhi_dataset *dataset, const bodhi_place *at) {
    segment named = {.key = dataset->key};
    segment_name(&named, (unsigned)at->kind, at->segment);
    return share(dataset, named.name);
}

int dataset_share(bodhi_dataset *dataset, uint32_t ordinal) {
    int fd = share(dataset, dataset->segments[ordinal]->name);
    if (fd < 0 && errno == ENOENT) {
        dataset_forget(dataset, ordinal);
        errno = ENOENT;
    }
    return fd;
}

bool dataset_sync_segment(bodhi_dataset *dataset, uint32_t ordinal) {
    pthread_mutex_lock(&dataset->mutex);
    segment *s = dataset->segments[ordinal];
    int fd = s->doubtful ? -1 : dataset_share(dataset, ordinal);
    pthread_mutex_unlock(&dataset->mutex);
    if (fd < 0) {
        return false;
    }
    bool synced = io_sync(fd);
    io_drop(fd);
    if (!synced) {
        dataset_doubt(dataset, ordinal);
    }
    return synced && dataset_sync_names(dataset);
}

void dataset_doubt(bodhi_dataset *dataset, uint32_t ordinal) {
    pthread_mutex_lock(&dataset->mutex);
    dataset->segments[ordinal]->doubtful = true;
    pthread_mutex_unlock(&dataset->mutex);
}
