/* Fuzz target: a segment and its index with any content, checksums bypassed. They are opened, repaired, read (in part
 * and whole) and written to.
 *
 * The input is split at its first byte b into index (b/256 of the rest) and segment. */
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "../../tests/native/scratch.h"
#include "base/crc32c.h"
#include "bodhi.h"
#include "segments/record.h"
#include "target.h"

#define DIRECTORY "127781690bad84b6-efd01f60ba992926" /* of the dataset "/s" with an empty generation */
#define SEGMENT   "a-0000000100000001.seg"
#define INDEX     "a-0000000100000001.idx"

static char root[128];

static void remove_root(void) {
    remove_all(root);
}

static void put_file(const char *name, const uint8_t *data, size_t size) {
    char path[256];
    (void)snprintf(path, sizeof path, "%s/" DIRECTORY "/%s", root, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size || close(fd) != 0) {
        abort();
    }
}

static void remove_segments(bodhi_store *store, bodhi_dataset *dataset) {
    bodhi_segment_facts facts[16];
    int64_t count;
    if (bodhi_dataset_segments(dataset, facts, 16, &count) != BODHI_OK) {
        return;
    }
    for (int64_t i = 0; i < count && i < 16; i++) {
        bodhi_stored_segment stored = {.id = facts[i].id, .kind = facts[i].kind};
        (void)snprintf(stored.directory, sizeof stored.directory, "%s", bodhi_dataset_directory(dataset));
        int status = bodhi_store_evict(store, &stored);
        if (status < 0 && status != BODHI_ERROR_VERSION) { /* another version's is left alone */
            abort();
        }
    }
}

static volatile float sum; /* so that what is read is looked at */

/* Read frames and look at every value that was asked for. */
static void read_frames(bodhi_dataset *dataset, const int64_t *numbers, int64_t count,
                        const bodhi_read_options *options) {
    bodhi_reader *reader;
    bodhi_frame frame;
    if (bodhi_reader_open(dataset, numbers, count, options, &reader) != BODHI_OK) {
        return;
    }
    while (bodhi_reader_next(reader, &frame) != BODHI_END) {
        const float *fields[] = {frame.positions, frame.velocities, frame.forces};
        int64_t first = options->n_ranges > 0 ? options->atoms[0].first : 0;
        int64_t last = options->n_ranges > 0 ? options->atoms[0].last : frame.n_atoms;
        for (size_t k = 0; k < sizeof fields / sizeof *fields; k++) {
            for (int64_t i = first * 3; fields[k] != NULL && i < last * 3 && i < frame.n_atoms * 3; i++) {
                sum += fields[k][i];
            }
        }
        for (int64_t i = 0; frame.ids != NULL && i < frame.n_atoms; i++) {
            sum += (float)frame.ids[i];
        }
    }
    bodhi_reader_close(reader);
}

static void read_and_write(bodhi_dataset *dataset) {
    uint64_t stored[64];
    int64_t numbers[64];
    int64_t count = 0;
    if (bodhi_dataset_numbers(dataset, BODHI_ALIEN, 0, stored, 64, &count) != BODHI_OK) {
        abort();
    }
    for (int64_t i = 0; i < count; i++) {
        numbers[i] = (int64_t)stored[i];
    }
    const bodhi_range some = {.first = 5, .last = 40};
    const bodhi_read_options part = {.no_thread = 1, .fields = BODHI_POSITIONS, .atoms = &some, .n_ranges = 1};
    const bodhi_read_options whole = {.no_thread = 1};
    const bodhi_read_options slices = {.no_thread = 1, .fields = (1 << FIELD_COUNT) - 1};
    read_frames(dataset, numbers, count, &part);
    read_frames(dataset, numbers, count, &slices);
    read_frames(dataset, numbers, count, &whole); /* last: what it finds damaged is given up */
    float positions[3] = {1, 2, 3};
    bodhi_frame written = {.number = BODHI_MAX_NUMBER, .n_atoms = 1, .positions = positions};
    bodhi_writer *writer;
    if (bodhi_writer_open(dataset, BODHI_ALIEN, NULL, &writer) == BODHI_OK) {
        int appended = bodhi_append(writer, &written);
        int closed = bodhi_writer_close(writer);
        if (appended < 0 || closed < 0) {
            abort();
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static bodhi_store *store;
    bodhi_dataset *dataset;
    if (store == NULL) {
        bodhi_bypass_checksums = true;
        const char *memory = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
        if (!make_scratch(root, sizeof root, memory) || bodhi_open(root, BODHI_CREATE, &store) != BODHI_OK ||
            bodhi_dataset_open(store, "/s", NULL, 0, BODHI_CREATE, &dataset) != BODHI_OK ||
            strcmp(bodhi_dataset_directory(dataset), DIRECTORY) != 0) {
            abort();
        }
        bodhi_dataset_close(dataset);
        (void)atexit(remove_root);
    }
    if (size < 1) {
        return 0;
    }
    size_t split = (size - 1) * data[0] / 256;
    put_file(INDEX, data + 1, split);
    put_file(SEGMENT, data + 1 + split, size - 1 - split);
    if (bodhi_dataset_open(store, "/s", NULL, 0, BODHI_CREATE, &dataset) != BODHI_OK) {
        abort(); /* damage must never stop the store from opening */
    }
    read_and_write(dataset);
    remove_segments(store, dataset);
    bodhi_dataset_close(dataset);
    return 0;
}
