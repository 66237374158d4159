/* Tests of a store whose files are damaged, cut, moved or of another version, and of reading in every way: nothing
 * wrong is read, and what is whole is found. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../check.h"
#include "../scratch.h"
#include "base/crc32c.h"
#include "base/io.h"
#include "bodhi.h"
#include "segments/record.h"
#include "segments/table.h"

char doing[256];
enum { FRAMES = 20, ATOMS = 700 };
static char scratch[64], home[128];
static bodhi_calls real;

/* --- A store with files to be damaged ---------------------------------------------------------------------------- */

static bodhi_store *store;
static bodhi_dataset *dataset;

static void open_all(void) {
    CHECK(bodhi_open(home, BODHI_CREATE, &store) == BODHI_OK);
    CHECK(bodhi_dataset_open(store, "/run", "g", 1, BODHI_CREATE, &dataset) == BODHI_OK);
}

static void close_all(void) {
    bodhi_dataset_close(dataset);
    bodhi_close(store);
}

static float value_of(int64_t number, int64_t i) {
    return (float)(number * 10007 + i) / 7.0F;
}

static int append(bodhi_writer *writer, int64_t number, int64_t atoms) {
    float *values = malloc((size_t)atoms * 12);
    CHECK(values != NULL);
    for (int64_t i = 0; i < atoms * 3; i++) {
        values[i] = value_of(number, i);
    }
    bodhi_frame frame = {.number = number, .n_atoms = atoms, .positions = values, .velocities = values};
    int status = bodhi_append(writer, &frame);
    free(values);
    return status;
}

/* Frames first to last - 1 into segments of their own. */
static void write_frames(int kind, int64_t first, int64_t last, int64_t segment_bytes) {
    bodhi_writer *writer;
    bodhi_write_options options = {.segment_bytes = segment_bytes, .block_atoms = 100};
    CHECK(bodhi_writer_open(dataset, kind, &options, &writer) == BODHI_OK);
    for (int64_t number = first; number < last; number++) {
        CHECK(append(writer, number, ATOMS) == BODHI_OK);
    }
    CHECK(bodhi_flush(writer, 0) == BODHI_OK && bodhi_writer_close(writer) == BODHI_OK);
}

/* Where a file of a segment lies: the first whose name begins and ends so. */
static char *file_of(char kind, const char *end) {
    static char path[300];
    char folder[200];
    (void)snprintf(folder, sizeof folder, "%s/%s", home, bodhi_dataset_directory(dataset));
    DIR *listed = opendir(folder);
    const struct dirent *entry;
    *path = '\0';
    while ((entry = readdir(listed)) != NULL) {
        size_t size = strlen(entry->d_name);
        if (entry->d_name[0] == kind && size > 4 && strcmp(entry->d_name + size - 4, end) == 0) {
            (void)snprintf(path, sizeof path, "%.160s/%.100s", folder, entry->d_name);
        }
    }
    (void)closedir(listed);
    return path;
}

static int count_files(char kind) {
    char folder[200];
    int n = 0;
    (void)snprintf(folder, sizeof folder, "%s/%s", home, bodhi_dataset_directory(dataset));
    DIR *listed = opendir(folder);
    const struct dirent *entry;
    while ((entry = readdir(listed)) != NULL) {
        n += entry->d_name[0] == kind && entry->d_name[1] == '-';
    }
    (void)closedir(listed);
    return n;
}

static int64_t size_of(const char *path) {
    struct stat status;
    CHECK(stat(path, &status) == 0);
    return status.st_size;
}

static void overwrite(const char *path, int64_t at, const void *data, size_t size) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    CHECK(fd >= 0 && pwrite(fd, data, size, at) == (ssize_t)size);
    (void)close(fd);
}

static void flip(const char *path, int64_t at) {
    unsigned char byte;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    CHECK(fd >= 0 && pread(fd, &byte, 1, at) == 1);
    byte ^= 0x40;
    CHECK(pwrite(fd, &byte, 1, at) == 1);
    (void)close(fd);
}

static bodhi_place place_of(int64_t number) {
    bodhi_place at;
    CHECK(bodhi_dataset_locate(dataset, &number, 1, &at) == BODHI_OK);
    return at;
}

/* Read all; a bit for each frame that is there. What is delivered is right. */
static uint64_t read_all(const bodhi_read_options *options) {
    int64_t numbers[FRAMES];
    bodhi_reader *reader;
    bodhi_frame frame;
    uint64_t there = 0;
    int status;
    for (int64_t i = 0; i < FRAMES; i++) {
        numbers[i] = i * 7 % FRAMES;
    }
    CHECK(bodhi_reader_open(dataset, numbers, FRAMES, options, &reader) == BODHI_OK);
    while ((status = bodhi_reader_next(reader, &frame)) != BODHI_END) {
        CHECK(status == BODHI_OK || (status == BODHI_MISS && frame.reason != 0));
        for (int64_t i = 0; status == BODHI_OK && i < frame.n_atoms * 3; i++) {
            bool asked = options == NULL || options->atoms == NULL;
            for (int64_t k = 0; !asked && k < options->n_ranges; k++) {
                asked = i / 3 >= options->atoms[k].first && i / 3 < options->atoms[k].last;
            }
            CHECK(!asked || frame.positions[i] == value_of(frame.number, i));
        }
        there |= status == BODHI_OK ? UINT64_C(1) << frame.number : 0;
    }
    bodhi_reader_close(reader);
    return there;
}

static bool is_there(int64_t number) {
    bodhi_reader *reader;
    bodhi_frame frame;
    CHECK(bodhi_reader_open(dataset, &number, 1, NULL, &reader) == BODHI_OK);
    bool there = bodhi_reader_next(reader, &frame) == BODHI_OK && frame.positions[7] == value_of(number, 7);
    bodhi_reader_close(reader);
    return there;
}

static const uint64_t all_frames = (UINT64_C(1) << FRAMES) - 1;

/* A new store with all frames in one segment of natives, and the first of them as aliens before that. */
static void begin_both(const char *what, int64_t aliens, int64_t segment_bytes) {
    (void)snprintf(doing, sizeof doing, "%s", what);
    bodhi_io = real;
    remove_all(home);
    open_all();
    if (aliens > 0) {
        write_frames(BODHI_ALIEN, 0, aliens, segment_bytes);
    }
    write_frames(BODHI_NATIVE, 0, FRAMES, 0);
}

static void begin(const char *what) {
    begin_both(what, 0, 0);
}

static void reopen(void) {
    close_all();
    open_all();
}

/* --- Damage ------------------------------------------------------------------------------------------------------ */

static void test_damaged_payload(void) {
    begin("a damaged block, in which a copy stands in");
    bodhi_place at = place_of(5);
    flip(file_of('n', ".seg"), at.offset + at.length - 64);
    reopen();
    CHECK(read_all(NULL) == (all_frames & ~(UINT64_C(1) << 5)));
    CHECK(place_of(5).found == 0); /* nobody here tries it again */
    reopen();
    bodhi_read_options options = {.no_thread = 1};
    CHECK(read_all(&options) == (all_frames & ~(UINT64_C(1) << 5)));
    write_frames(BODHI_ALIEN, 5, 6, 0);
    reopen();
    CHECK(place_of(5).kind == BODHI_NATIVE && read_all(NULL) == all_frames && place_of(5).kind == BODHI_ALIEN);
    close_all();
}

static void test_lost_index(void) {
    static const unsigned char zeros[96];
    begin("an index that is damaged, cut or away");
    char index[300];
    (void)snprintf(index, sizeof index, "%s", file_of('n', ".idx"));
    overwrite(index, 64 + 3 * 32, zeros, sizeof zeros);
    reopen();
    CHECK(read_all(NULL) == all_frames);
    CHECK(truncate(file_of('n', ".idx"), 64 + 3 * 32) == 0);
    reopen();
    CHECK(read_all(NULL) == all_frames);
    int64_t size = size_of(file_of('n', ".seg"));
    CHECK(unlink(file_of('n', ".idx")) == 0);
    reopen();
    CHECK(read_all(NULL) == all_frames && size_of(file_of('n', ".seg")) == size);
    CHECK(size_of(file_of('n', ".idx")) == 64 + FRAMES * 32); /* it was made again */
    close_all();
}

static void test_torn_segment(void) {
    begin("a segment that ends too early");
    bodhi_place at = place_of(18);
    bodhi_place before = place_of(10);
    CHECK(truncate(file_of('n', ".seg"), at.offset + at.length - 200) == 0);
    reopen();
    CHECK(place_of(18).found == 0 && place_of(19).found == 0 && read_all(NULL) == all_frames >> 2);
    write_frames(BODHI_NATIVE, 18, FRAMES, 0);
    reopen();
    CHECK(read_all(NULL) == all_frames);
    flip(file_of('n', ".seg"), before.offset + 20); /* its header */
    CHECK(unlink(file_of('n', ".idx")) == 0);
    at = place_of(19);
    flip(file_of('n', ".seg"), at.offset + at.length - 64);
    reopen();
    CHECK(place_of(19).found == 0 && read_all(NULL) == (all_frames >> 1 & ~(UINT64_C(1) << 10)));
    close_all();
}

static void test_cut_while_open(void) {
    begin("a segment that is cut while it is open");
    bodhi_place at = place_of(12);
    CHECK(truncate(file_of('n', ".seg"), at.offset + at.length / 2) == 0);
    bodhi_read_options options = {.unverified = 1};
    CHECK(read_all(&options) == (UINT64_C(1) << 12) - 1);
    close_all();
}

/* What lies where it was not written is nobody's. */
static void test_misplaced(void) {
    begin_both("records of another segment", FRAMES, 0);
    char first[300];
    char second[300];
    char moved[300];
    (void)snprintf(first, sizeof first, "%s", file_of('a', ".seg"));
    (void)snprintf(moved, sizeof moved, "%s", first);
    memcpy(strrchr(moved, '-') + 1, "0123456789abcdef", 16);
    CHECK(rename(first, moved) == 0 && unlink(file_of('a', ".idx")) == 0);
    unsigned char nothing[64] = {0};
    overwrite(moved, 0, nothing, sizeof nothing); /* its header would tell */
    reopen();
    bodhi_facts facts;
    CHECK(bodhi_dataset_query(dataset, &facts) == BODHI_OK && facts.alien == 0);
    CHECK(unlink(moved) == 0);
    close_all();
    begin_both("entries of another index", FRAMES, 0);
    (void)snprintf(second, sizeof second, "%s", file_of('n', ".idx"));
    unsigned char entries[FRAMES * 32];
    int fd = open(second, O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0 && pread(fd, entries, sizeof entries, 64) == (ssize_t)sizeof entries);
    (void)close(fd);
    uint64_t number = 19;
    for (size_t i = 0; i < FRAMES; i++, number--) { /* the same places, other frames: only the seed of the sum tells */
        index_entry entry;
        CHECK(parse_entry(entries + 32 * i, &entry, place_of((int64_t)i).segment) == PARSED);
        entry.number = number;
        write_entry(entries + 32 * i, &entry, place_of((int64_t)i).segment);
    }
    overwrite(file_of('a', ".idx"), 64, entries, sizeof entries);
    CHECK(bodhi_dataset_query(dataset, &facts) == BODHI_OK);
    reopen();
    uint64_t listed[FRAMES];
    int64_t count;
    CHECK(bodhi_dataset_query(dataset, &facts) == BODHI_OK && facts.scanned > 0);
    CHECK(bodhi_dataset_numbers(dataset, BODHI_ALIEN, 0, listed, FRAMES, &count) == BODHI_OK && count == FRAMES);
    CHECK(read_all(NULL) == all_frames);
    close_all();
}

/* An index that is valid and wrong costs misses, never another frame. */
static void test_lying_index(void) {
    begin("an index that names the wrong frames");
    char index[300];
    unsigned char bytes[2][32];
    index_entry entry;
    (void)snprintf(index, sizeof index, "%s", file_of('n', ".idx"));
    for (int i = 0; i < 2; i++) {
        bodhi_place at = place_of(4 + i);
        entry = (index_entry){.type = ENTRY_FRAME,
                              .fields = 3,
                              .head_units = 4,
                              .number = (uint64_t)(5 - i),
                              .offset = (uint64_t)at.offset,
                              .length = (uint64_t)at.length};
        write_entry(bytes[i], &entry, at.segment);
    }
    overwrite(index, 64 + 4 * 32, bytes, sizeof bytes);
    reopen();
    CHECK(read_all(NULL) == (all_frames & ~(UINT64_C(3) << 4)));
    close_all();
}

static void test_other_versions(void) {
    begin("a record of another version");
    unsigned char record[128] = {0};
    static const unsigned char zeros[4];
    uint32_t head[3] = {MAGIC_RECORD, 99, sizeof record};
    memcpy(record, head, sizeof head);
    uint32_t crc = bodhi_crc32c(bodhi_crc32c(0, record, 12), zeros, 4);
    crc = bodhi_crc32c(crc, record + 16, sizeof record - 16);
    memcpy(record + 12, &crc, 4);
    char path[300];
    (void)snprintf(path, sizeof path, "%s", file_of('n', ".seg"));
    int64_t size = size_of(path);
    overwrite(path, size, record, sizeof record);
    CHECK(unlink(file_of('n', ".idx")) == 0);
    reopen();
    CHECK(read_all(NULL) == all_frames && size_of(path) == size + (int64_t)sizeof record);
    uint32_t header[16] = {MAGIC_SEGMENT, 99, 64};
    crc = bodhi_crc32c(bodhi_crc32c(0, header, 12), zeros, 4);
    header[3] = bodhi_crc32c(crc, header + 4, 48);
    overwrite(path, 0, header, sizeof header);
    bodhi_usage usage;
    bodhi_stored_segment *listed;
    int64_t n;
    CHECK(bodhi_survey(home, &usage, &listed, &n) == BODHI_OK && n == 1);
    CHECK(bodhi_store_evict(store, &listed[0]) == BODHI_ERROR_VERSION && size_of(path) > 0);
    free(listed);
    close_all();
}

/* --- Stores and datasets ----------------------------------------------------------------------------------------- */

static int pretend_nfs(int fd, struct statfs *status) {
    int result = fstatfs(fd, status);
    status->f_type = 0x6969;
    return result;
}

static int pretend_full(int fd, struct statfs *status) {
    int result = fstatfs(fd, status);
    status->f_bavail = 4096;
    return result;
}

static void test_stores(void) {
    begin("stores that are damaged, or not to be trusted");
    bodhi_store *other;
    char path[300];
    uint8_t identity[2][16];
    bodhi_identity(store, identity[0]);
    (void)snprintf(path, sizeof path, "%s/identity", home);
    flip(path, 20);
    reopen();
    bodhi_identity(store, identity[1]);
    CHECK(memcmp(identity[0], identity[1], 16) != 0 && read_all(NULL) == all_frames);
    CHECK(chmod(home, 0777) == 0 && bodhi_open(home, 0, &other) == BODHI_ERROR_UNSAFE && chmod(home, 0700) == 0);
    bodhi_io.fstatfs = pretend_nfs;
    CHECK(bodhi_open(home, 0, &other) == BODHI_ERROR_NETWORK);
    bodhi_io = real;
    (void)snprintf(path, sizeof path, "%s/%s/meta", home, bodhi_dataset_directory(dataset));
    unsigned char meta[64];
    size_t size = write_meta(meta, "/ran", 4, "g", 1);
    overwrite(path, 0, meta, size);
    bodhi_dataset *second;
    CHECK(bodhi_dataset_open(store, "/run", "g", 1, BODHI_CREATE, &second) == BODHI_ERROR_CONFLICT);
    flip(path, 25);
    CHECK(bodhi_dataset_open(store, "/run", "g", 1, BODHI_CREATE, &second) == BODHI_OK);
    bodhi_dataset_close(second);
    CHECK(bodhi_dataset_open_directory(store, bodhi_dataset_directory(dataset), &second) == BODHI_OK);
    CHECK(strcmp(bodhi_dataset_name(second), "/run") == 0);
    bodhi_dataset_close(second);
    close_all();
}

static int count_descriptors(void) {
    int n = 0;
    DIR *listed = opendir("/proc/self/fd");
    while (readdir(listed) != NULL) {
        n++;
    }
    (void)closedir(listed);
    return n;
}

static void test_eviction(void) {
    begin_both("eviction beside readers and writers", FRAMES, 0);
    bodhi_usage usage;
    bodhi_stored_segment *listed;
    bodhi_reader *reader;
    bodhi_writer *writer;
    bodhi_frame frame;
    bodhi_segment_facts facts[4];
    int64_t n;
    int64_t number = 3;
    CHECK(place_of(3).kind == BODHI_NATIVE);
    CHECK(bodhi_survey(home, &usage, &listed, &n) == BODHI_OK && n == 2);
    CHECK(listed[0].kind == BODHI_ALIEN && listed[1].kind == BODHI_NATIVE);
    int before = count_descriptors();
    CHECK(bodhi_reader_open(dataset, &number, 1, NULL, &reader) == BODHI_OK);
    CHECK(bodhi_reader_next(reader, &frame) == BODHI_OK);
    CHECK(bodhi_store_evict(store, &listed[1]) == BODHI_ERROR_BUSY);
    bodhi_reader_close(reader);
    CHECK(count_descriptors() == before);
    CHECK(bodhi_writer_open(dataset, BODHI_NATIVE, NULL, &writer) == BODHI_OK);
    CHECK(append(writer, 100, ATOMS) == BODHI_OK);
    CHECK(append(writer, 100, ATOMS) == BODHI_EXISTS);
    CHECK(append(writer, 3, ATOMS) == BODHI_EXISTS);
    bodhi_writer *other;
    CHECK(bodhi_writer_open(dataset, BODHI_ALIEN, NULL, &other) == BODHI_OK);
    CHECK(append(other, 3, ATOMS) == BODHI_EXISTS && bodhi_writer_close(other) == BODHI_OK);
    CHECK(bodhi_store_evict(store, &listed[1]) == BODHI_ERROR_BUSY);
    CHECK(bodhi_dataset_segments(dataset, facts, 4, &n) == BODHI_OK && n == 2);
    CHECK(bodhi_writer_close(writer) == BODHI_OK);
    CHECK(bodhi_store_evict(store, &listed[1]) == BODHI_OK);
    free(listed);
    CHECK(bodhi_dataset_refresh(dataset) == BODHI_OK && place_of(3).kind == BODHI_ALIEN && place_of(100).found == 0);
    CHECK(bodhi_dataset_segments(dataset, facts, 4, &n) == BODHI_OK && n == 1);
    CHECK(read_all(NULL) == all_frames);
    close_all();
}

static void test_dropping(void) {
    begin_both("dropped frames, and marks", 3, 0);
    const int64_t numbers[2] = {4, 7};
    int64_t dropped;
    uint64_t words[2] = {0};
    CHECK(bodhi_dataset_drop(dataset, BODHI_NATIVE, numbers, 2, &dropped) == BODHI_OK && dropped == 2);
    for (int again = 0; again < 2; again++) {
        words[0] = words[1] = 0;
        CHECK(bodhi_dataset_mark(dataset, 0, 1, FRAMES, words, words + 1) == BODHI_OK);
        CHECK(words[0] == (all_frames & ~(UINT64_C(1) << 4 | UINT64_C(1) << 7)) && words[1] == 7);
        CHECK(place_of(4).found == 0 && place_of(5).found == 1);
        reopen();
    }
    words[0] = words[1] = 0;
    CHECK(bodhi_dataset_mark(dataset, 5, -1, 6, words, words + 1) == BODHI_OK);
    CHECK(words[0] == 0x3D && words[1] == 0x38);
    CHECK(read_all(NULL) == (all_frames & ~(UINT64_C(1) << 4 | UINT64_C(1) << 7)));
    close_all();
}

static ssize_t descending_getrandom(void *buffer, size_t size, unsigned flags) {
    static unsigned char next = 0xF0;
    (void)flags;
    memset(buffer, next, size);
    next = (unsigned char)(next - 8);
    return (ssize_t)size;
}

/* A tombstone that is read before what it drops; and one of which only the record is left. */
static void test_early_tombstones(void) {
    begin("tombstones that come early");
    const int64_t numbers[2] = {2, 3};
    int64_t dropped;
    bodhi_writer *writer;
    close_all();
    remove_all(home);
    bodhi_io.getrandom = descending_getrandom; /* a later segment is listed before an earlier one */
    open_all();
    CHECK(bodhi_writer_open(dataset, BODHI_NATIVE, NULL, &writer) == BODHI_OK);
    for (int64_t number = 0; number < 5; number++) {
        CHECK(append(writer, number, ATOMS) == BODHI_OK);
    }
    CHECK(bodhi_flush(writer, 0) == BODHI_OK);
    CHECK(bodhi_dataset_drop(dataset, BODHI_NATIVE, numbers, 2, &dropped) == BODHI_OK && dropped == 2);
    CHECK(bodhi_writer_close(writer) == BODHI_OK && count_files('n') == 4);
    reopen();
    CHECK(place_of(2).found == 0 && place_of(3).found == 0 && is_there(4));
    while (*file_of('n', ".idx") != '\0') {
        CHECK(unlink(file_of('n', ".idx")) == 0);
    }
    reopen();
    CHECK(place_of(2).found == 0 && place_of(3).found == 0 && is_there(4));
    close_all();
}

/* A segment that nobody could repair when it was opened is repaired before it is written to. */
static void test_late_repair(void) {
    begin("an index that lacks entries while a writer holds its segment");
    CHECK(truncate(file_of('n', ".idx"), 64 + 3 * 32) == 0);
    int fd = open(file_of('n', ".seg"), O_RDWR | O_CLOEXEC);
    CHECK(io_lock(fd, LOCK_WRITER, true) == LOCK_GOT);
    reopen();
    CHECK(place_of(2).found == 1 && place_of(3).found == 0);
    (void)close(fd);
    write_frames(BODHI_NATIVE, 300, 303, 0);
    reopen();
    CHECK(read_all(NULL) == all_frames && is_there(300) && is_there(302));
    close_all();
}

/* Of two copies, which two writers that did not know of each other made, both are dropped. */
static void test_dropping_copies(void) {
    begin("copies are dropped together");
    bodhi_dataset *second;
    bodhi_writer *writers[2];
    int64_t number = 50;
    int64_t dropped;
    CHECK(bodhi_dataset_open(store, "/run", "g", 1, 0, &second) == BODHI_OK);
    CHECK(bodhi_writer_open(dataset, BODHI_NATIVE, NULL, &writers[0]) == BODHI_OK);
    CHECK(bodhi_writer_open(second, BODHI_NATIVE, NULL, &writers[1]) == BODHI_OK);
    for (int i = 0; i < 2; i++) {
        CHECK(append(writers[i], number, ATOMS) == BODHI_OK);
    }
    CHECK(bodhi_writer_close(writers[0]) == BODHI_OK && bodhi_writer_close(writers[1]) == BODHI_OK);
    CHECK(count_files('n') == 4); /* nobody claims what another holds */
    bodhi_dataset_close(second);
    CHECK(bodhi_dataset_refresh(dataset) == BODHI_OK);
    CHECK(bodhi_dataset_drop(dataset, BODHI_NATIVE, &number, 1, &dropped) == BODHI_OK && dropped == 1);
    CHECK(place_of(50).found == 0);
    reopen();
    CHECK(place_of(50).found == 0);
    close_all();
}

/* --- Room -------------------------------------------------------------------------------------------------------- */

static void test_quota(void) {
    begin("a quota that two writers share");
    enum { QUOTA = 3000000, LARGE = 5000 };
    bodhi_dataset *second;
    bodhi_writer *writers[2];
    bodhi_usage usage;
    bodhi_stored_segment *listed;
    int64_t n;
    bodhi_store_set_quota(store, QUOTA);
    CHECK(bodhi_dataset_open(store, "/other", NULL, 0, BODHI_CREATE, &second) == BODHI_OK);
    CHECK(bodhi_writer_open(second, BODHI_NATIVE, NULL, &writers[0]) == BODHI_OK);
    CHECK(bodhi_writer_open(dataset, BODHI_NATIVE, NULL, &writers[1]) == BODHI_OK);
    for (int64_t i = 0; i < 8; i++) {
        CHECK(append(writers[0], i, LARGE) == BODHI_OK); /* gathered, and in no file yet */
    }
    int status = BODHI_OK;
    for (int64_t i = 0; status == BODHI_OK; i++) {
        status = append(writers[1], 1000 + i, LARGE);
    }
    CHECK(status == BODHI_ERROR_FULL && strstr(bodhi_message(), "quota") != NULL);
    CHECK(bodhi_writer_close(writers[0]) == BODHI_OK && bodhi_writer_close(writers[1]) == BODHI_OK);
    CHECK(bodhi_survey(home, &usage, &listed, &n) == BODHI_OK);
    CHECK(usage.used <= QUOTA);
    free(listed);
    CHECK(read_all(NULL) == all_frames); /* what has no origin was not evicted */
    bodhi_io.fstatfs = pretend_full;
    bodhi_store_set_quota(store, INT64_C(1) << 40);
    CHECK(bodhi_writer_open(second, BODHI_NATIVE, NULL, &writers[0]) == BODHI_OK);
    CHECK(append(writers[0], 100, LARGE) == BODHI_ERROR_FULL);
    CHECK(bodhi_writer_close(writers[0]) == BODHI_OK);
    bodhi_io = real;
    bodhi_dataset_close(second);
    close_all();
}

static ssize_t half_pwritev(int fd, const struct iovec *parts, int n, off_t offset) {
    if (parts->iov_len < 4000 && n == 1) {
        return real.pwritev(fd, parts, n, offset);
    }
    struct iovec half = {.iov_base = parts->iov_base, .iov_len = parts->iov_len / 2 + 1};
    static bool again;
    again = !again;
    errno = ENOSPC;
    return again ? real.pwritev(fd, &half, 1, offset) : -1;
}

static int no_index_openat(int directory, const char *path, int flags, mode_t mode) {
    if ((flags & O_CREAT) != 0 && strstr(path, ".idx") != NULL) {
        errno = ENOSPC;
        return -1;
    }
    return real.openat(directory, path, flags, mode);
}

static int locked_openat(int directory, const char *path, int flags, mode_t mode) {
    errno = EACCES;
    return strncmp(path, "a-", 2) == 0 ? -1 : real.openat(directory, path, flags, mode);
}

/* The disk is full in the middle of a record, or before the second file of a segment. */
static void test_full_disk(void) {
    begin("a full disk");
    bodhi_writer *writer;
    int64_t size = size_of(file_of('n', ".seg"));
    CHECK(bodhi_writer_open(dataset, BODHI_NATIVE, NULL, &writer) == BODHI_OK);
    bodhi_io.pwritev = half_pwritev;
    CHECK(append(writer, 200, 30000) == BODHI_ERROR_FULL && size_of(file_of('n', ".seg")) == size);
    CHECK(append(writer, 201, ATOMS) == BODHI_OK && bodhi_flush(writer, 0) == BODHI_ERROR_FULL);
    CHECK(size_of(file_of('n', ".seg")) == size);
    bodhi_io = real;
    CHECK(append(writer, 203, ATOMS + 50) == BODHI_OK && append(writer, 204, ATOMS) == BODHI_OK);
    CHECK(bodhi_flush(writer, 0) == BODHI_OK && bodhi_writer_close(writer) == BODHI_OK);
    CHECK(is_there(203) && is_there(204));
    CHECK(place_of(200).found == 0 && place_of(201).found == 0);
    bodhi_io.openat = no_index_openat;
    CHECK(bodhi_writer_open(dataset, BODHI_ALIEN, NULL, &writer) == BODHI_OK);
    CHECK(append(writer, 202, ATOMS) == BODHI_ERROR_FULL && count_files('a') == 0);
    CHECK(bodhi_writer_close(writer) == BODHI_OK);
    bodhi_io = real;
    write_frames(BODHI_ALIEN, 30, 31, 0);
    bodhi_io.openat = locked_openat; /* a segment that cannot be opened costs its frames only */
    reopen();
    CHECK(bodhi_dataset_refresh(dataset) == BODHI_OK && read_all(NULL) == all_frames && place_of(30).found == 0);
    bodhi_io = real;
    close_all();
}

/* --- Ways to read ------------------------------------------------------------------------------------------------ */

static void test_ways(void) {
    begin_both("every way to read", FRAMES, 40000);
    const bodhi_range ranges[] = {{0, 5}, {120, 130}, {131, 180}, {640, 700}};
    for (int way = 0; way < 24; way++) {
        bodhi_read_options options = {.direct = way % 3 == 0 ? BODHI_DIRECT_ON : BODHI_DIRECT_OFF,
                                      .no_thread = way / 3 % 2,
                                      .request_bytes = way % 2 == 0 ? 30000 : 400000,
                                      .ring = 2};
        if (way >= 12) {
            options.atoms = ranges;
            options.n_ranges = 4;
        }
        CHECK(read_all(&options) == all_frames);
    }
    /* The aliens, in many segments, in which records begin at the same places. */
    bodhi_usage usage;
    bodhi_stored_segment *listed;
    int64_t n;
    CHECK(bodhi_survey(home, &usage, &listed, &n) == BODHI_OK && n > 5);
    CHECK(bodhi_store_evict(store, &listed[n - 1]) == BODHI_OK && bodhi_dataset_refresh(dataset) == BODHI_OK);
    free(listed);
    bodhi_read_options options = {.no_thread = 1, .request_bytes = 1 << 20, .ring = 2};
    CHECK(read_all(&options) == all_frames);
    bodhi_reader *reader;
    bodhi_frame frame;
    int64_t number = 77;
    CHECK(bodhi_reader_open(dataset, &number, 1, NULL, &reader) == BODHI_OK);
    CHECK(bodhi_reader_next(reader, &frame) == BODHI_MISS && frame.reason == BODHI_REASON_ABSENT);
    bodhi_reader_close(reader);
    close_all();
}

static void test_table(void) {
    table t = {0};
    uint64_t numbers[64];
    size_t state = 0;
    for (uint32_t batch = 0; batch < 40; batch++) {
        place places[20];
        for (uint32_t i = 0; i < 20; i++) {
            places[i] = (place){.number = (batch * 20 + i) * UINT64_C(7919) % 800, .offset = i};
        }
        CHECK(table_add(&t, places, batch % 2 == 0 ? 20 : 8));
    }
    size_t living = table_living(&t);
    CHECK(living == 20 * 20 + 20 * 8);
    for (uint64_t from = 0, seen = 0; seen < living;) {
        size_t n = table_numbers(&t, from, numbers, 64);
        for (size_t i = 0; i < n; i++, seen++) {
            CHECK(numbers[i] >= from && (i == 0 || numbers[i] > numbers[i - 1]));
            state = 0;
            CHECK(table_find(&t, numbers[i], &state) != NULL);
        }
        from = numbers[n - 1] + 1;
    }
    state = 0;
    place *one = table_find(&t, numbers[0], &state);
    one->dead = 1;
    state = 0;
    CHECK(table_find(&t, numbers[0], &state) == NULL && table_living(&t) == living - 1);
    table_free(&t);
}

int main(void) {
    real = bodhi_io;
    CHECK(make_scratch(scratch, sizeof scratch, "/tmp"));
    (void)snprintf(home, sizeof home, "%s/store", scratch);
    test_table();
    test_damaged_payload();
    test_lost_index();
    test_torn_segment();
    test_cut_while_open();
    test_misplaced();
    test_lying_index();
    test_other_versions();
    test_stores();
    test_eviction();
    test_dropping();
    test_dropping_copies();
    test_early_tombstones();
    test_late_repair();
    test_quota();
    test_full_disk();
    test_ways();
    remove_all(scratch);
    return 0;
}
