/* Descriptors of segments, which keep them from eviction. */
#include <errno.h>
#include <fcntl.h>

#include "base/io.h"
#include "store/dataset.h"

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
    int fd;
    int error;
    do {
        fd = io_open(dataset->fd, name, flags);
        error = errno;
    } while (fd < 0 && (error == EMFILE || error == ENFILE) && close_idle(dataset));
    errno = error;
    return fd;
}

/* Lock a segment that was just opened, if it could be, against eviction; -1 and ENOENT if that was quicker. */
static int lock_opened(int fd) {
    struct stat status;
    if (fd >= 0 && (io_lock(fd, LOCK_READERS, false) == LOCK_HELD || /* just being evicted; other failures do no harm */
                    (bodhi_io.fstat(fd, &status) == 0 && status.st_nlink == 0))) {
        io_drop(fd);
        errno = ENOENT;
        return -1;
    }
    return fd;
}

int dataset_share(bodhi_dataset *dataset, uint32_t ordinal) {
    int fd = lock_opened(open_with_room(dataset, dataset->segments[ordinal]->name, O_RDONLY));
    if (fd < 0 && errno == ENOENT) {
        dataset_forget(dataset, ordinal);
        errno = ENOENT;
    }
    return fd;
}

int dataset_share_segment(const bodhi_dataset *dataset, const bodhi_place *at) {
    segment named = {.key = dataset->key};
    segment_name(&named, (unsigned)at->kind, at->segment);
    return lock_opened(io_open(dataset->fd, named.name, O_RDONLY));
}

static int pin(bodhi_dataset *dataset, uint32_t ordinal, bool direct) {
    segment *s = dataset->segments[ordinal];
    if (s->gone) {
        errno = ENOENT;
        return -1;
    }
    if (s->fd < 0) {
        if (dataset->open_segments >= MAX_OPEN_SEGMENTS) {
            (void)close_idle(dataset);
        }
        s->fd = dataset_share(dataset, ordinal);
        if (s->fd < 0) {
            return -1;
        }
        dataset->open_segments++;
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
