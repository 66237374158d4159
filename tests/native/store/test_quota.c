/* Quotas, and disks that are full. */
#include "sample.h"
#include "write/writer.h"

static int pretend_full(int fd, struct statfs *status) {
    int result = fstatfs(fd, status);
    status->f_bavail = 4096;
    return result;
}

static bodhi_writer *flushed;

static ssize_t flushing_preadv2(int fd, const struct iovec *parts, int n, off_t offset, int flags) {
    bodhi_io.preadv2 = real.preadv2;
    CHECK(bodhi_flush(flushed, 0) == BODHI_OK);
    return real.preadv2(fd, parts, n, offset, flags);
}

static void test_quota(void) {
    begin("a quota that two writers share");
    enum { QUOTA = 3000000, LARGE = 5000 };
    bodhi_dataset *second;
    bodhi_writer *writers[3];
    bodhi_usage usage;
    bodhi_stored_segment *listed;
    int64_t n;
    bodhi_store_set_quota(store, QUOTA);
    CHECK(bodhi_dataset_open(store, "/other", NULL, 0, BODHI_CREATE, &second) == BODHI_OK);
    CHECK(bodhi_writer_open(second, BODHI_NATIVE, NULL, &writers[0]) == BODHI_OK);
    writers[1] = open_writer(BODHI_NATIVE);
    for (int64_t i = 0; i < 8; i++) {
        CHECK(append(writers[0], i, LARGE) == BODHI_OK); /* gathered, and in no file yet */
    }
    int status = BODHI_OK;
    for (int64_t i = 0; status == BODHI_OK; i++) {
        status = append(writers[1], 1000 + i, LARGE);
    }
    CHECK(status == BODHI_ERROR_FULL && strstr(bodhi_message(), "quota") != NULL);
    /* What was gathered comes into its file while a third writer learns what others were promised. */
    writers[2] = open_writer(BODHI_NATIVE);
    flushed = writers[0];
    bodhi_io.preadv2 = flushing_preadv2;
    CHECK(append(writers[2], 2000, LARGE) == BODHI_ERROR_FULL && bodhi_io.preadv2 == real.preadv2);
    CHECK(bodhi_writer_close(writers[2]) == BODHI_OK);
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

/* What a stream has written counts once: as what lies in the files. */
static void test_streamed(void) {
    enum { QUOTA = 3000000, LEAST = 2700000, LARGE = 5000 };
    bodhi_usage usage;
    bodhi_stored_segment *listed;
    int64_t n;
    begin_empty("a quota for who streams");
    bodhi_store_set_quota(store, QUOTA);
    bodhi_writer *writer = open_writer(BODHI_NATIVE);
    CHECK(writer_begin_streaming(writer, false) == BODHI_OK);
    for (int64_t number = 0; append(writer, number, LARGE) == BODHI_OK; number++) {
        CHECK(bodhi_flush(writer, 0) == BODHI_OK);
    }
    CHECK(bodhi_writer_close(writer) == BODHI_OK && bodhi_survey(home, &usage, &listed, &n) == BODHI_OK);
    CHECK(usage.used <= QUOTA && usage.used > LEAST);
    free(listed);
    close_all();
}

/* Frames that somebody pushed are nowhere else, and are not evicted for others'; those of a trajectory are. */
static void test_pushed_frames(void) {
    enum { QUOTA = 1000000, LARGE = 5000 };
    bodhi_dataset *second;
    bodhi_writer *writer;
    int64_t number = 0;
    begin("room for others beside pushed frames");
    bodhi_store_set_quota(store, QUOTA);
    CHECK(bodhi_dataset_open(store, "/other", NULL, 0, BODHI_CREATE, &second) == BODHI_OK);
    CHECK(bodhi_writer_open(second, BODHI_ALIEN, NULL, &writer) == BODHI_OK);
    while (append(writer, number, LARGE) == BODHI_OK) {
        number++;
        CHECK(number < QUOTA / (LARGE * 12));
    }
    CHECK(append(writer, number, LARGE) == BODHI_ERROR_FULL && bodhi_writer_close(writer) == BODHI_OK);
    CHECK(bodhi_dataset_refresh(run) == BODHI_OK && read_all(NULL) == all_frames);
    int fd = open(path_of("x-origin.json"), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && close(fd) == 0);
    CHECK(bodhi_writer_open(second, BODHI_ALIEN, NULL, &writer) == BODHI_OK);
    CHECK(append(writer, number, LARGE) == BODHI_OK && bodhi_writer_close(writer) == BODHI_OK);
    CHECK(bodhi_dataset_refresh(run) == BODHI_OK && read_all(NULL) == 0);
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
    int64_t size = size_of(file_of('n', ".seg"));
    bodhi_writer *writer = open_writer(BODHI_NATIVE);
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
    writer = open_writer(BODHI_ALIEN);
    CHECK(append(writer, 202, ATOMS) == BODHI_ERROR_FULL && count_files('a') == 0);
    CHECK(bodhi_writer_close(writer) == BODHI_OK);
    bodhi_io = real;
    write_frames(BODHI_ALIEN, 30, 31, 0);
    bodhi_io.openat = locked_openat; /* a segment that cannot be opened costs its frames only */
    reopen();
    CHECK(bodhi_dataset_refresh(run) == BODHI_OK && read_all(NULL) == all_frames && place_of(30).found == 0);
    bodhi_io = real;
    close_all();
}

int main(void) {
    make_home();
    test_quota();
    test_streamed();
    test_pushed_frames();
    test_full_disk();
    remove_home();
    return 0;
}
