/* A store with one dataset, whose frames and files tests know; see sample.h. */
#include "sample.h"

#include <dirent.h>

#include "../scratch.h"

char doing[256];
char home[128];
bodhi_store *store;
bodhi_dataset *run;
bodhi_calls real;

static char scratch[64];

void make_home(void) {
    real = bodhi_io;
    CHECK(make_scratch(scratch, sizeof scratch, "/tmp"));
    (void)snprintf(home, sizeof home, "%s/store", scratch);
}

void remove_home(void) {
    remove_all(scratch);
}

void open_all(void) {
    CHECK(bodhi_open(home, BODHI_CREATE, &store) == BODHI_OK);
    CHECK(bodhi_dataset_open(store, "/run", "g", 1, BODHI_CREATE, &run) == BODHI_OK);
}

void close_all(void) {
    bodhi_dataset_close(run);
    bodhi_close(store);
}

/* Unsigned, as numbers go to BODHI_MAX_NUMBER. */
float value_of(int64_t number, int64_t i) {
    return (float)((uint64_t)number * 10007 + (uint64_t)i) / 7.0F;
}

int append(bodhi_writer *writer, int64_t number, int64_t atoms) {
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

bodhi_writer *open_writer(int kind) {
    bodhi_writer *writer;
    CHECK(bodhi_writer_open(run, kind, NULL, &writer) == BODHI_OK);
    return writer;
}

void append_frames(bodhi_writer *writer, int64_t first, int64_t last) {
    for (int64_t number = first; number < last; number++) {
        CHECK(append(writer, number, ATOMS) == BODHI_OK);
    }
}

void drop_frames(bodhi_dataset *dataset, const int64_t *numbers, int64_t n) {
    int64_t dropped;
    CHECK(bodhi_dataset_drop(dataset, BODHI_NATIVE, numbers, n, &dropped) == BODHI_OK && dropped == n);
}

bodhi_dataset *open_again(int flags) {
    bodhi_dataset *dataset;
    CHECK(bodhi_dataset_open(store, "/run", "g", 1, flags, &dataset) == BODHI_OK);
    return dataset;
}

bodhi_stored_segment *list_segments(int64_t n) {
    bodhi_usage usage;
    bodhi_stored_segment *listed;
    int64_t count;
    CHECK(bodhi_survey(home, &usage, &listed, &count) == BODHI_OK && count == n);
    return listed;
}

const char *path_of(const char *name) {
    static char path[300];
    (void)snprintf(path, sizeof path, "%s/%s/%s", home, bodhi_dataset_directory(run), name);
    return path;
}

void write_frames(int kind, int64_t first, int64_t last, int64_t segment_bytes) {
    bodhi_writer *writer;
    bodhi_write_options options = {.segment_bytes = segment_bytes, .block_atoms = 100};
    CHECK(bodhi_writer_open(run, kind, &options, &writer) == BODHI_OK);
    append_frames(writer, first, last);
    CHECK(bodhi_flush(writer, 0) == BODHI_OK && bodhi_writer_close(writer) == BODHI_OK);
}

char *file_of(char kind, const char *end) {
    static char path[300];
    DIR *listed = opendir(path_of(""));
    const struct dirent *entry;
    *path = '\0';
    while ((entry = readdir(listed)) != NULL) {
        size_t size = strlen(entry->d_name);
        if (entry->d_name[0] == kind && size > 4 && strcmp(entry->d_name + size - 4, end) == 0) {
            (void)snprintf(path, sizeof path, "%s", path_of(entry->d_name));
        }
    }
    (void)closedir(listed);
    return path;
}

int count_files(char kind) {
    int n = 0;
    DIR *listed = opendir(path_of(""));
    const struct dirent *entry;
    while ((entry = readdir(listed)) != NULL) {
        n += entry->d_name[0] == kind && entry->d_name[1] == '-';
    }
    (void)closedir(listed);
    return n;
}

int64_t size_of(const char *path) {
    struct stat status;
    CHECK(stat(path, &status) == 0);
    return status.st_size;
}

void overwrite(const char *path, int64_t at, const void *data, size_t size) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    CHECK(fd >= 0 && pwrite(fd, data, size, at) == (ssize_t)size);
    (void)close(fd);
}

void flip(const char *path, int64_t at) {
    unsigned char byte;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    CHECK(fd >= 0 && pread(fd, &byte, 1, at) == 1);
    byte ^= 0x40;
    CHECK(pwrite(fd, &byte, 1, at) == 1);
    (void)close(fd);
}

bodhi_place place_of(int64_t number) {
    bodhi_place at;
    CHECK(bodhi_dataset_locate(run, &number, 1, &at) == BODHI_OK);
    return at;
}

bool try_to_read_all(const bodhi_read_options *options, uint64_t *there) {
    int64_t numbers[FRAMES];
    bodhi_reader *reader;
    bodhi_frame frame;
    int status;
    *there = 0;
    for (int64_t i = 0; i < FRAMES; i++) {
        numbers[i] = i * 7 % FRAMES;
    }
    if (bodhi_reader_open(run, numbers, FRAMES, options, &reader) != BODHI_OK) {
        return false;
    }
    while ((status = bodhi_reader_next(reader, &frame)) != BODHI_END) {
        CHECK(status == BODHI_OK || (status == BODHI_MISS && frame.reason != 0));
        for (int64_t i = 0; status == BODHI_OK && i < frame.n_atoms * 3; i++) {
            bool asked = options == NULL || options->atoms == NULL;
            for (int64_t k = 0; !asked && k < options->n_ranges; k++) {
                asked = i / 3 >= options->atoms[k].first && i / 3 < options->atoms[k].last;
            }
            float value = value_of(frame.number, i);
            CHECK(!asked || frame.positions[i] == value);
            CHECK(!asked || frame.velocities == NULL || frame.velocities[i] == value);
        }
        *there |= status == BODHI_OK ? UINT64_C(1) << frame.number : 0;
    }
    bodhi_reader_close(reader);
    return true;
}

uint64_t read_all(const bodhi_read_options *options) {
    uint64_t there;
    CHECK(try_to_read_all(options, &there));
    return there;
}

bool is_there(int64_t number) {
    bodhi_reader *reader;
    bodhi_frame frame;
    CHECK(bodhi_reader_open(run, &number, 1, NULL, &reader) == BODHI_OK);
    int status = bodhi_reader_next(reader, &frame);
    CHECK(status == BODHI_MISS || (status == BODHI_OK && frame.positions[7] == value_of(number, 7)));
    bodhi_reader_close(reader);
    return status == BODHI_OK;
}

void begin_empty(const char *what) {
    DOING("%s", what);
    bodhi_io = real;
    remove_all(home);
    open_all();
}

void begin_both(const char *what, int64_t aliens, int64_t segment_bytes) {
    begin_empty(what);
    if (aliens > 0) {
        write_frames(BODHI_ALIEN, 0, aliens, segment_bytes);
    }
    write_frames(BODHI_NATIVE, 0, FRAMES, 0);
}

void begin(const char *what) {
    begin_both(what, 0, 0);
}

void reopen(void) {
    close_all();
    open_all();
}
