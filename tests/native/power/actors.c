/* All who use a store at once; see actors.h. */
#include "actors.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "../check.h"
#include "base/clock.h"
#include "base/io.h"
#include "frames.h"
#include "net/dial.h"
#include "net/link.h"
#include "segments/segment.h"
#include "server/serve.h"

static const char identity[] = "the simulation"; /* of every pusher */

enum { WRITERS = 3, PATIENCE_MS = 300 };

/* A writer, and what it has promised: frames as bits. */
typedef struct {
    bodhi_writer *writer; /* NULL: it is not open */
    uint32_t dataset;
    uint64_t appended; /* since its last flush */
    uint64_t shown;    /* flushed before */
} kept_writer;

static struct {
    char store_path[PATH_BYTES], socket_path[PATH_BYTES];
    chance *chance;
    int large;
    bodhi_store *store;
    bodhi_dataset *datasets[DATASETS];
    kept_writer writers[WRITERS];
    bodhi_reader *reader; /* holds segments open */
    int listener;
    bodhi_server *server; /* NULL: none runs */
    pthread_t thread;
    bool evicting; /* by name */
    int actions_to_room;
    bool sync_fails;             /* a server that met it refuses for good, and makes pushers wait */
    pthread_mutex_t mutex;       /* over what follows: the server's threads evict, too */
    uint64_t released[DATASETS]; /* since it was last set to 0 */
} all;

static uint32_t any(uint32_t n) {
    return draw(all.chance, n);
}

/* --- What is promised -------------------------------------------------------------------------------------------- */

/* These frames may go: by order, or because their origin has them. */
static void release(uint32_t dataset, uint64_t frames) {
    for (int i = 0; i < WRITERS; i++) {
        if (all.writers[i].writer != NULL && all.writers[i].dataset == dataset) {
            all.writers[i].shown &= ~frames;
            all.writers[i].appended &= ~frames; /* they may have been shown with a segment that was full */
        }
    }
    pthread_mutex_lock(&all.mutex);
    all.released[dataset] |= frames;
    pthread_mutex_unlock(&all.mutex);
    disk_note(NOTE_RELEASE, dataset, frames);
}

/* Frames that were acknowledged durable; whatever was released since released[] was set to 0 is not. */
static void require(uint32_t dataset, uint64_t frames) {
    pthread_mutex_lock(&all.mutex);
    frames &= ~all.released[dataset];
    pthread_mutex_unlock(&all.mutex);
    disk_note(NOTE_REQUIRE, dataset, frames);
}

static void begin_promise(uint32_t dataset) {
    pthread_mutex_lock(&all.mutex);
    all.released[dataset] = 0;
    pthread_mutex_unlock(&all.mutex);
}

/* The frames of these that can be read now, by a process that knows nothing yet. */
static uint64_t readable(uint32_t dataset, uint64_t frames) {
    bodhi_store *store;
    bodhi_dataset *opened;
    CHECK(bodhi_open(all.store_path, BODHI_READ_ONLY, &store) == BODHI_OK);
    CHECK(bodhi_dataset_open(store, dataset_names[dataset], NULL, 0, 0, &opened) == BODHI_OK);
    uint64_t there = frames_read(opened, dataset, frames);
    bodhi_dataset_close(opened);
    bodhi_close(store);
    return there;
}

/* The same of what a server acknowledged, which must be there to be read at once. */
static void require_served(uint32_t dataset, uint64_t frames) {
    pthread_mutex_lock(&all.mutex);
    frames &= ~all.released[dataset];
    pthread_mutex_unlock(&all.mutex);
    uint64_t there = readable(dataset, frames);
    if (there != frames) {
        disk_say("acknowledged and not to be read: %#llx", (unsigned long long)(frames & ~there));
    }
    CHECK(there == frames);
    require(dataset, there);
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
        const char *of = dataset_names[dataset];
        bool by_intent = all.evicting || dataset == 1;
        if (!by_intent || !segment_from_name(&s, name, hash_bytes(of, strlen(of)), hash_bytes("", 0))) {
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

/* --- Opening ----------------------------------------------------------------------------------------------------- */

/* Whatever can be had of the store; on a full disk that may be nothing. */
static bool have_dataset(uint32_t dataset) {
    if (all.store == NULL && bodhi_open(all.store_path, BODHI_CREATE, &all.store) != BODHI_OK) {
        all.store = NULL;
        return false;
    }
    if (all.datasets[dataset] == NULL) {
        const char *name = dataset_names[dataset];
        if (bodhi_dataset_open(all.store, name, NULL, 0, BODHI_CREATE, &all.datasets[dataset]) != BODHI_OK) {
            all.datasets[dataset] = NULL;
            return false;
        }
        if (dataset == 1) { /* it has an origin, so that its segments may be evicted for room */
            char path[2 * PATH_BYTES];
            (void)snprintf(path, sizeof path, "%.120s/%.40s", all.store_path,
                           bodhi_dataset_directory(all.datasets[dataset]));
            int directory = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
            (void)!io_write_file(directory, "x-origin.json", "{}", 2, true);
            (void)close(directory);
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

static void close_dataset(uint32_t dataset) {
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

/* --- Writing ----------------------------------------------------------------------------------------------------- */

static void flush_writer(kept_writer *w, int durable) {
    int status = bodhi_flush(w->writer, durable);
    disk_say("writer %d flushed%s: %s", (int)(w - all.writers), durable ? " durably" : "", bodhi_status_name(status));
    if (status == BODHI_OK) {
        w->shown |= w->appended;
        if (durable) {
            begin_promise(w->dataset);
            require(w->dataset, w->shown);
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
        uint32_t dataset = any(DATASETS);
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

/* --- Server and pushers ------------------------------------------------------------------------------------------ */

static void *run(void *server) {
    CHECK(bodhi_server_run(server) >= 0);
    return NULL;
}

static void stop_server(void) {
    if (all.server != NULL) {
        CHECK(write(bodhi_server_wake(all.server), "x", 1) == 1);
        CHECK(pthread_join(all.thread, NULL) == 0);
        bodhi_server_close(all.server);
        (void)close(all.listener);
        all.server = NULL;
        disk_say("the server has ended");
    }
}

static bool have_server(void) {
    if (all.server != NULL) {
        return true;
    }
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    all.listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    (void)snprintf(address.sun_path, sizeof address.sun_path, "%.107s", all.socket_path);
    (void)unlink(all.socket_path);
    CHECK(bind(all.listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(all.listener, 16) == 0);
    bodhi_serve_options options = {
        .listener = all.listener, .batch_ms = 50, .quota = any(3) == 0 ? 200000 + any(400000) : 0};
    if (all.large) { /* its segments are small, and there is room for all */
        options.quota = 8000000;
    }
    if (bodhi_server_open(all.store_path, &options, &all.server) != BODHI_OK) {
        (void)close(all.listener);
        all.server = NULL;
        return false;
    }
    CHECK(pthread_create(&all.thread, NULL, run, all.server) == 0);
    return true;
}

/* A dataset that has an origin is refused. */
static uint32_t any_pushed(void) {
    return any(8) == 0 ? 1 : 0;
}

static void push_some(void) {
    uint32_t dataset = any_pushed();
    if (!have_dataset(dataset) || !have_server()) {
        return;
    }
    const char *servers[1] = {all.socket_path};
    bodhi_push_options options = {
        .durable = any(4) > 0, .timeout_ms = PATIENCE_MS, .batch_bytes = 1 + any(20000), .identity = identity};
    bodhi_pusher *pusher;
    if (all.large) { /* batches that go beyond the end of a segment */
        options.batch_bytes = 400000;
        options.timeout_ms = 10 * PATIENCE_MS;
    }
    if (all.actions_to_room > 0) {
        options.timeout_ms = 20; /* it will be refused */
    }
    if (bodhi_push_open(servers, 1, dataset_names[dataset], NULL, 0, &options, &pusher) != BODHI_OK) {
        return;
    }
    uint64_t pushed = 0;
    int status = BODHI_OK;
    begin_promise(dataset);
    for (uint32_t n = all.large ? 20 : 1 + any(10); n > 0 && status == BODHI_OK; n--) {
        bodhi_frame frame = frame_of(dataset, any(FRAMES));
        status = bodhi_push(pusher, &frame);
        disk_say("pushed %d to %u: %s", (int)frame.number, dataset, bodhi_status_name(status));
        pushed |= status == BODHI_OK ? UINT64_C(1) << frame.number : 0;
    }
    status = status == BODHI_OK ? bodhi_push_flush(pusher) : status;
    if (status == BODHI_OK && options.durable) {
        require_served(dataset, pushed);
    }
    bodhi_push_abandon(pusher);
    if (all.sync_fails && status != BODHI_OK) {
        all.sync_fails = false;
        stop_server();
    }
}

/* What the server says that it keeps for good. */
static void ask_some(void) {
    static const uint8_t no_token[WIRE_TOKEN];
    unsigned char asked[WIRE_KEEP_BYTES * FRAMES] = {0};
    uint32_t dataset = any_pushed();
    uint64_t held = 0;
    if (all.server == NULL) {
        return;
    }
    for (uint64_t i = 0; i < FRAMES; i++) {
        bodhi_frame frame = frame_of(dataset, (int64_t)i);
        wire_put64(asked + WIRE_KEEP_BYTES * i, i);
        wire_put32(asked + WIRE_KEEP_BYTES * i + 8, wire_frame_crc(&frame));
    }
    wire_link link = {.fd = -1};
    wire_part part = {asked, sizeof asked};
    int64_t deadline = now_ms() + PATIENCE_MS;
    begin_promise(dataset);
    int status = link_dial(&link, all.socket_path, geteuid(), NULL, 0, deadline);
    if (status == BODHI_OK) {
        uint32_t flags = WIRE_PUSHES | WIRE_DURABLE;
        status = link_open(&link, flags, no_token, dataset_names[dataset], NULL, 0, identity, deadline);
    }
    if (status == BODHI_OK && link_ask(&link, WIRE_KEEP, &part, 1, WIRE_KEPT, deadline) == BODHI_OK) {
        for (size_t i = 0; i < FRAMES; i++) {
            CHECK(link.in.body[i] != WIRE_OTHER);
            held |= link.in.body[i] == WIRE_HELD ? UINT64_C(1) << i : 0;
        }
        disk_say("the server has of %u:", dataset);
        require_served(dataset, held);
    }
    link_close(&link);
}

/* --- Reading, dropping, evicting --------------------------------------------------------------------------------- */

static void read_some(void) {
    uint32_t dataset = any(DATASETS);
    if (!have_dataset(dataset)) {
        return;
    }
    (void)!bodhi_dataset_refresh(all.datasets[dataset]);
    (void)frames_read(all.datasets[dataset], dataset, (UINT64_C(1) << FRAMES) - 1);
    if (all.reader == NULL) {
        int64_t numbers[4] = {any(FRAMES), any(FRAMES), any(FRAMES), any(FRAMES)};
        bodhi_frame frame;
        CHECK(bodhi_reader_open(all.datasets[dataset], numbers, 4, NULL, &all.reader) == BODHI_OK);
        CHECK(bodhi_reader_next(all.reader, &frame) >= 0);
    } else {
        bodhi_reader_close(all.reader);
        all.reader = NULL;
    }
}

static void drop_some(void) {
    uint32_t dataset = any(DATASETS);
    int64_t numbers[3] = {any(FRAMES), any(FRAMES), any(FRAMES)};
    int64_t dropped;
    if (have_dataset(dataset)) {
        disk_say("drop of %u: %d %d %d", dataset, (int)numbers[0], (int)numbers[1], (int)numbers[2]);
        release(dataset, UINT64_C(1) << numbers[0] | UINT64_C(1) << numbers[1] | UINT64_C(1) << numbers[2]);
        (void)!bodhi_dataset_refresh(all.datasets[dataset]);
        (void)!bodhi_dataset_drop(all.datasets[dataset], (int)any(2), numbers, 3, &dropped);
    }
}

/* What segments a directory has, or all of them (NULL): evict `n` drawn ones, or each (n < 0). */
static void evict_segments(const char *directory, int n) {
    bodhi_usage usage;
    bodhi_stored_segment *segments;
    int64_t there;
    if (all.store == NULL || bodhi_survey(all.store_path, &usage, &segments, &there) != BODHI_OK) {
        return;
    }
    all.evicting = true;
    for (int64_t i = 0; i < (n < 0 ? there : n) && there > 0; i++) {
        const bodhi_stored_segment *one = &segments[n < 0 ? i : (int64_t)any((uint32_t)there)];
        if (directory == NULL || strcmp(one->directory, directory) == 0) {
            (void)!bodhi_store_evict(all.store, one);
        }
    }
    all.evicting = false;
    free(segments);
}

/* What is left in a directory but segments and what belongs to them. */
static void remove_rest(int directory) {
    DIR *entries = io_list(directory, ".");
    const struct dirent *entry;
    struct stat status;
    CHECK(entries != NULL);
    while ((entry = readdir(entries)) != NULL) { // NOLINT(concurrency-mt-unsafe): ours
        char segment_name[sizeof entry->d_name + 4];
        size_t stem = strcspn(entry->d_name, ".");
        (void)snprintf(segment_name, sizeof segment_name, "%.*s.seg", (int)stem, entry->d_name);
        if (stem > 0 && fstatat(directory, segment_name, &status, 0) != 0) {
            (void)bodhi_io.unlinkat(directory, entry->d_name, 0);
        }
    }
    (void)closedir(entries);
}

/* A dataset goes with its directory, as a user's command has it, whoever has it open. */
static void remove_dataset(void) {
    uint32_t dataset = any(DATASETS);
    char path[2 * PATH_BYTES];
    if (!have_dataset(dataset)) {
        return;
    }
    const char *name = bodhi_dataset_directory(all.datasets[dataset]);
    (void)snprintf(path, sizeof path, "%.120s/%.40s", all.store_path, name);
    evict_segments(name, -1);
    int store = open(all.store_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int directory = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    CHECK(store >= 0);
    if (directory >= 0) {
        remove_rest(directory);
        (void)close(directory);
    }
    int removed = bodhi_io.unlinkat(store, name, AT_REMOVEDIR);
    disk_say("dataset %u is %s", dataset, removed == 0 ? "removed" : "in use");
    (void)close(store);
    if (removed != 0) { /* what is not there any more is written anew by whoever opens it */
        close_dataset(dataset);
        (void)!have_dataset(dataset);
    }
}

/* --- Acting ------------------------------------------------------------------------------------------------------ */

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
    (void)snprintf(all.store_path, sizeof all.store_path, "%s/store", root);
    (void)snprintf(all.socket_path, sizeof all.socket_path, "%s", socket_path);
    all.chance = c;
    all.large = large;
    if (any(4) == 0) {
        disk_close_root();
    }
}

void actors_act(void) {
    uint32_t what = all.large ? 45 : any(100);
    if (all.actions_to_room > 0 && --all.actions_to_room == 0) {
        disk_set_room(-1);
    }
    if (what < 45) {
        write_some();
    } else if (what < 63) {
        push_some();
    } else if (what < 69) {
        ask_some();
    } else if (what < 74) {
        read_some();
    } else if (what < 80) {
        drop_some();
    } else if (what < 84) {
        evict_segments(NULL, 1 + (int)any(2));
    } else if (what < 86) {
        remove_dataset();
    } else if (what < 90) {
        set_trouble();
    } else if (what < 94) {
        stop_server();
    } else {
        close_dataset(any(DATASETS));
    }
}

void actors_end(void) {
    stop_server();
    for (uint32_t dataset = 0; dataset < DATASETS; dataset++) {
        close_dataset(dataset);
    }
    bodhi_close(all.store);
    while (dial_running() > 0) { /* what a pusher left behind ends soon */
        (void)usleep(1000);
    }
    (void)pthread_mutex_destroy(&all.mutex);
}
