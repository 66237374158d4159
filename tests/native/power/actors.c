/* All who use a store at once; see actors.h. */
#include "acting.h"

#include "../dials.h"
#include "base/io.h"

const char identity[] = "the simulation";

uint64_t promises[PROMISERS];

struct actors all;

void release(uint32_t dataset, uint64_t frames) {
    for (int i = 0; i < WRITERS; i++) {
        if (all.writers[i].writer != NULL && all.writers[i].dataset == dataset) {
            all.writers[i].shown &= ~frames;
            all.writers[i].appended &= ~frames; /* they may have been shown with a segment that was full */
        }
    }
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        straight_rank *one = &all.ranks[rank];
        for (int64_t i = 0; dataset == SLICES + rank && i < one->n_sent; i++) {
            one->sent[i] = one->sent[i] >= 0 && (frames >> one->sent[i] & 1) ? -1 : one->sent[i];
        }
    }
    pthread_mutex_lock(&all.mutex);
    all.released[dataset] |= frames;
    pthread_mutex_unlock(&all.mutex);
    disk_note(NOTE_RELEASE, dataset, frames);
}

void require(enum promiser who, uint32_t dataset, uint64_t frames) {
    pthread_mutex_lock(&all.mutex);
    frames &= ~all.released[dataset];
    pthread_mutex_unlock(&all.mutex);
    promises[who] += (uint64_t)__builtin_popcountll(frames & ~AUTHOR_KNOWN);
    disk_note(NOTE_REQUIRE, dataset, frames);
}

void begin_promise(uint32_t dataset) {
    pthread_mutex_lock(&all.mutex);
    all.released[dataset] = 0;
    pthread_mutex_unlock(&all.mutex);
}

/* The frames of these that can be read now, by a process that knows nothing yet. */
static uint64_t readable(uint32_t dataset, uint64_t frames) {
    bodhi_store *store;
    bodhi_dataset *opened;
    CHECK(known_open_store(all.root, dataset, BODHI_READ_ONLY, &store) == BODHI_OK);
    CHECK(known_open(store, dataset, 0, &opened) == BODHI_OK);
    uint64_t there = frames_read(opened, dataset, frames);
    bodhi_dataset_close(opened);
    bodhi_close(store);
    return there;
}

void require_pushed(enum promiser who, uint32_t dataset, uint64_t frames) {
    pthread_mutex_lock(&all.mutex);
    frames &= ~all.released[dataset];
    pthread_mutex_unlock(&all.mutex);
    uint64_t there = readable(dataset, frames);
    if (there != frames) {
        disk_say("acknowledged and not to be read: %#llx", (unsigned long long)(frames & ~there));
    }
    CHECK(there == frames);
    require(who, dataset, there != 0 ? there | AUTHOR_KNOWN : 0);
}

static bool visit_frame(void *context, const record_header *header) {
    uint64_t *frames = context;
    *frames |= header->type == RECORD_FRAME ? UINT64_C(1) << header->number : 0;
    return true;
}

void actors_unlinking(int directory, const char *name) {
    segment s;
    struct stat status;
    for (uint32_t dataset = 0; dataset < DATASETS; dataset++) {
        const known_dataset *of = &known[dataset];
        bool by_intent = all.evicting || of->attached != NULL;
        if (!by_intent || !segment_from_name(&s, name, hash_bytes(of->name, strlen(of->name)),
                                             hash_bytes(of->generation, strlen(of->generation)))) {
            continue;
        }
        uint64_t frames = 0;
        int fd = openat(directory, name, O_RDONLY | O_CLOEXEC);
        if (fd >= 0 && fstat(fd, &status) == 0) {
            (void)scan_segment(fd, &s.key, SEGMENT_HEADER_BYTES, (uint64_t)status.st_size, visit_frame, &frames);
            (void)close(fd);
        }
        release(dataset, frames);
    }
}

bool have_dataset(uint32_t dataset) {
    bodhi_store **store = dataset == COPIED ? &all.other : &all.store;
    if (*store == NULL && known_open_store(all.root, dataset, BODHI_CREATE, store) != BODHI_OK) {
        *store = NULL;
        return false;
    }
    if (all.datasets[dataset] == NULL) {
        if (known_open(*store, dataset, BODHI_CREATE, &all.datasets[dataset]) != BODHI_OK) {
            all.datasets[dataset] = NULL;
            return false;
        }
        const char *attached = known[dataset].attached;
        if (attached != NULL) {
            (void)!io_write_file(all.datasets[dataset]->fd, attached, "{}", 2, FILE_REPLACE);
        }
    }
    return true;
}

static void close_writer(kept_writer *w) {
    if (w->writer != NULL) {
        (void)!bodhi_writer_close(w->writer);
        disk_say("writer %d closed", (int)(w - all.writers));
        w->writer = NULL;
    }
}

void close_dataset(uint32_t dataset) {
    if (all.reader != NULL) {
        bodhi_reader_close(all.reader);
        all.reader = NULL;
    }
    for (int i = 0; i < WRITERS; i++) {
        if (all.writers[i].dataset == dataset) {
            close_writer(&all.writers[i]);
        }
    }
    bodhi_dataset_close(all.datasets[dataset]);
    all.datasets[dataset] = NULL;
}

static void flush_writer(kept_writer *w, int durable) {
    int status = bodhi_flush(w->writer, durable);
    disk_say("writer %d flushed%s: %s", (int)(w - all.writers), durable ? " durably" : "", bodhi_status_name(status));
    if (status == BODHI_OK) {
        w->shown |= w->appended;
        if (durable) {
            begin_promise(w->dataset);
            require(BY_WRITER, w->dataset, w->shown);
        }
    } else if (status != BODHI_ERROR_FULL) {
        close_writer(w);
    }
    w->appended = 0;
}

static void append_some(kept_writer *w) {
    for (uint32_t n = any(8) == 0 ? 16 : 1 + any(5); n > 0; n--) {
        bodhi_frame frame = frame_of(w->dataset, any(FRAMES));
        int status = bodhi_append(w->writer, &frame);
        disk_say("writer %d (%u) appended %d: %s", (int)(w - all.writers), w->dataset, (int)frame.number,
                 bodhi_status_name(status));
        if (status == BODHI_OK) {
            w->appended |= UINT64_C(1) << frame.number;
        } else if (status < 0) { /* what was appended since the last flush may be undone */
            w->appended = 0;
        }
    }
}

static void write_some(void) {
    kept_writer *w = &all.writers[any(WRITERS)];
    if (w->writer == NULL) {
        uint32_t dataset = any(2) == 0 ? any(2) : any(DATASETS);
        bodhi_write_options options = {.segment_bytes = any(4) == 0 ? 1 /* a frame each */ : 2000 + any(30000),
                                       .block_atoms = 100 + any(1000)};
        if (!have_dataset(dataset) ||
            bodhi_writer_open(all.datasets[dataset], (int)any(2), &options, &w->writer) != BODHI_OK) {
            w->writer = NULL;
            return;
        }
        w->dataset = dataset;
        w->appended = w->shown = 0;
    }
    append_some(w);
    switch (any(5)) {
    case 0:
        break; /* others go on first */
    case 1:
        flush_writer(w, 0);
        break;
    case 2:
        close_writer(w);
        break;
    default:
        flush_writer(w, 1);
        break;
    }
}

static void set_trouble(void) {
    switch (any(3)) {
    case 0:
        disk_set_room(any(30000));
        all.actions_to_room = 3;
        break;
    case 1:
        disk_fail_sync(1 + (int)any(3));
        all.sync_fails = true;
        break;
    default:
        if (all.store != NULL) {
            bodhi_store_set_quota(all.store, any(2) == 0 ? 0 : 40000 + any(200000));
        }
        break;
    }
}

void actors_begin(const char *root, const char *socket_path, chance *c, int large) {
    memset(&all, 0, sizeof all);
    (void)pthread_mutex_init(&all.mutex, NULL);
    (void)snprintf(all.root, sizeof all.root, "%s", root);
    (void)snprintf(all.store_path, sizeof all.store_path, "%s/store", root);
    (void)snprintf(all.socket_path, sizeof all.socket_path, "%s", socket_path);
    all.chance = c;
    all.large = large;
    if (any(4) == 0) {
        disk_close_root();
    }
}

static void evict_some(void) {
    evict_segments(any(4) == 0 ? all.other : all.store, NULL, 1 + (int)any(2));
}

static void close_some(void) {
    close_dataset(any(DATASETS));
}

/* What is done, and how often in a hundred. */
static const struct {
    uint32_t often;
    void (*act)(void);
} ACTS[] = {
    {28, write_some}, {18, push_some}, {14, push_straight}, {8, assemble_some}, {4, copy_some},   {4, read_some},
    {5, drop_some},   {3, evict_some}, {2, remove_dataset}, {4, set_trouble},   {4, stop_server}, {6, close_some},
};

void actors_act(void) {
    uint32_t what = all.large ? 28 : any(100); /* 28: the first that pushes */
    if (all.actions_to_room > 0 && --all.actions_to_room == 0) {
        disk_set_room(-1);
    }
    int i = 0;
    while (what >= ACTS[i].often) {
        what -= ACTS[i++].often;
    }
    ACTS[i].act();
}

void actors_end(void) {
    stop_server();
    for (uint32_t dataset = 0; dataset < DATASETS; dataset++) {
        close_dataset(dataset);
    }
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        close_rank(rank);
    }
    bodhi_close(all.store);
    bodhi_close(all.other);
    await_dials();
    (void)pthread_mutex_destroy(&all.mutex);
}
