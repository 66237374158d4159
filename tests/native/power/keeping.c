/* Who puts slices together, copies, reads, drops and evicts. */
#include "acting.h"

#include "assemble/gather.h"
#include "base/io.h"

/* About half of the numbers, ascending. */
static int64_t half_of_all(int64_t numbers[64]) {
    return numbers_of((uint64_t)any(1U << (FRAMES / 2)) << (FRAMES / 2) | any(1U << (FRAMES / 2)), numbers);
}

static bodhi_reader *open_reader(uint32_t dataset, const int64_t *numbers, int64_t n) {
    bodhi_read_options options = {
        .fields = BODHI_POSITIONS | BODHI_VELOCITIES | BODHI_IDS, .direct = BODHI_DIRECT_OFF, .no_thread = 1};
    bodhi_reader *reader;
    CHECK(bodhi_reader_open(all.datasets[dataset], numbers, n, &options, &reader) == BODHI_OK);
    return reader;
}

/* Drop slices and delete segments in which none is left. */
static void drop_slices(uint32_t dataset, const int64_t *numbers, int64_t n) {
    const char *directory = bodhi_dataset_directory(all.datasets[dataset]);
    bodhi_usage usage;
    bodhi_stored_segment *segments;
    int64_t there;
    int64_t dropped;
    (void)!bodhi_dataset_drop(all.datasets[dataset], BODHI_NATIVE, numbers, n, &dropped);
    if (bodhi_survey(all.store_path, &usage, &segments, &there) == BODHI_OK) {
        for (int64_t i = 0; i < there; i++) {
            if (strcmp(segments[i].directory, directory) == 0) {
                (void)!bodhi_store_sweep(all.store, &segments[i]);
            }
        }
        free(segments);
    }
    (void)!bodhi_dataset_refresh(all.datasets[dataset]);
}

/* Slices become frames; when these are on disk the slices go. */
void assemble_some(void) {
    int64_t numbers[64];
    int64_t n = half_of_all(numbers);
    int32_t own[64] = {0};
    bodhi_writer *writer;
    gather *g;
    if (!have_dataset(SLICES) || !have_dataset(SLICES + 1) || !have_dataset(WHOLE) ||
        bodhi_writer_open(all.datasets[WHOLE], BODHI_NATIVE, NULL, &writer) != BODHI_OK) {
        return;
    }
    int status = any(2) == 0 ? BODHI_OK : writer_begin_streaming(writer, true);
    CHECK(gather_open(SLICED, 1, 0, &g) == BODHI_OK && gather_begin(g, numbers, own, (size_t)n) == BODHI_OK);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        int64_t missed;
        (void)!bodhi_dataset_refresh(all.datasets[SLICES + rank]);
        bodhi_reader *reader = open_reader(SLICES + rank, numbers, n);
        while (gather_read(g, rank, reader, &missed) == BODHI_MISS) {
        }
        bodhi_reader_close(reader);
    }
    uint64_t made = 0;
    int64_t number;
    begin_promise(WHOLE);
    while (status >= 0 && (status = gather_write(g, writer, &number)) != BODHI_END) {
        CHECK(status != BODHI_ERROR_CONFLICT);
        made |= status == BODHI_OK || status == BODHI_EXISTS ? UINT64_C(1) << number : 0;
    }
    status = status < 0 ? status : bodhi_flush(writer, 1);
    disk_say("%#llx were put together: %s", (unsigned long long)made, bodhi_status_name(status));
    if (status == BODHI_OK) {
        require(BY_ASSEMBLER, WHOLE, made);
        n = numbers_of(made, numbers);
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            release(SLICES + rank, made);
            drop_slices(SLICES + rank, numbers, n);
        }
    }
    gather_close(g);
    (void)!bodhi_writer_close(writer);
}

/* Frames go from a store to another one. */
void copy_some(void) {
    int64_t numbers[64];
    int64_t n = half_of_all(numbers);
    bodhi_writer *writer;
    bodhi_frame frame;
    if (!have_dataset(PUSHED) || !have_dataset(COPIED) ||
        bodhi_writer_open(all.datasets[COPIED], BODHI_NATIVE, NULL, &writer) != BODHI_OK) {
        return;
    }
    (void)!bodhi_dataset_refresh(all.datasets[PUSHED]);
    bodhi_reader *reader = open_reader(PUSHED, numbers, n);
    uint64_t copied = 0;
    int status = BODHI_OK;
    begin_promise(COPIED);
    for (int read; status >= 0 && (read = bodhi_reader_next(reader, &frame)) != BODHI_END;) {
        status = read == BODHI_OK ? bodhi_append(writer, &frame) : BODHI_OK;
        copied |= read == BODHI_OK && status >= 0 ? UINT64_C(1) << frame.number : 0;
    }
    status = status < 0 ? status : bodhi_flush(writer, 1);
    disk_say("%#llx were copied: %s", (unsigned long long)copied, bodhi_status_name(status));
    if (status == BODHI_OK) {
        require(BY_COPIER, COPIED, copied);
    }
    bodhi_reader_close(reader);
    (void)!bodhi_writer_close(writer);
}

void read_some(void) {
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

void drop_some(void) {
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

void evict_segments(bodhi_store *store, const char *directory, int n) {
    bodhi_usage usage;
    bodhi_stored_segment *segments;
    int64_t there;
    if (store == NULL || bodhi_survey(store->path, &usage, &segments, &there) != BODHI_OK) {
        return;
    }
    all.evicting = true;
    for (int64_t i = 0; i < (n < 0 ? there : n) && there > 0; i++) {
        const bodhi_stored_segment *one = &segments[n < 0 ? i : (int64_t)any((uint32_t)there)];
        if (directory == NULL || strcmp(one->directory, directory) == 0) {
            (void)!bodhi_store_evict(store, one);
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
void remove_dataset(void) {
    uint32_t dataset = any(DATASETS);
    char path[2 * PATH_BYTES];
    char store_path[2 * PATH_BYTES];
    if (!have_dataset(dataset)) {
        return;
    }
    const char *name = bodhi_dataset_directory(all.datasets[dataset]);
    (void)snprintf(path, sizeof path, "%.80s/%.40s/%.40s", all.root, known[dataset].store, name);
    evict_segments(dataset == COPIED ? all.other : all.store, name, -1);
    release(dataset, AUTHOR_KNOWN);
    (void)snprintf(store_path, sizeof store_path, "%.80s/%.40s", all.root, known[dataset].store);
    int store = open(store_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
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
        if (dataset >= SLICES && dataset < SLICES + RANKS) {
            close_rank(dataset - SLICES);
        }
        (void)!have_dataset(dataset);
    }
}
