/* Stores and datasets that are damaged, somebody else's, or where none may be. */
#include "../scratch.h"
#include "sample.h"
#include "segments/record.h"

static long pretended; /* magic of the file system */

static int pretend_fstatfs(int fd, struct statfs *status) {
    int result = fstatfs(fd, status);
    status->f_type = pretended;
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
    pretended = 0x6969;
    bodhi_io.fstatfs = pretend_fstatfs;
    CHECK(bodhi_open(home, 0, &other) == BODHI_ERROR_NETWORK);
    bodhi_io = real;
    unsigned char meta[64];
    size_t size = write_meta(meta, "/ran", 4, "g", 1);
    overwrite(path_of("meta"), 0, meta, size);
    bodhi_dataset *second;
    CHECK(bodhi_dataset_open(store, "/run", "g", 1, BODHI_CREATE, &second) == BODHI_ERROR_CONFLICT);
    flip(path_of("meta"), 25);
    second = open_again(BODHI_CREATE);
    bodhi_dataset_close(second);
    CHECK(bodhi_dataset_open_directory(store, bodhi_dataset_directory(run), &second) == BODHI_OK);
    CHECK(strcmp(bodhi_dataset_name(second), "/run") == 0);
    bodhi_dataset_close(second);
    close_all();
}

static void test_network_file_systems(void) {
    static const long refused[] = {0x6969, 0xFF534D42, 0x0BD00BD0, 0x47504653, 0x65735546};
    bodhi_store *other;
    begin_empty("network file systems");
    close_all();
    remove_all(home);
    bodhi_io.fstatfs = pretend_fstatfs;
    for (size_t i = 0; i < LENGTH(refused); i++) {
        pretended = refused[i];
        CHECK(bodhi_open(home, BODHI_CREATE, &other) == BODHI_ERROR_NETWORK);
        CHECK(strstr(bodhi_message(), "network file system") != NULL);
        CHECK(bodhi_open(home, BODHI_CREATE | BODHI_ALLOW_NETWORK, &other) == BODHI_OK);
        bodhi_close(other);
    }
    bodhi_io = real;
}

static int taken_linkat(int from, const char *name, int to, const char *path, int flags) {
    CHECK(real.linkat(from, name, to, path, flags) == 0); /* another process was as quick */
    return real.linkat(from, name, to, path, flags);
}

/* Several may write the meta file at once; and one that was deleted beneath a dataset in use is written again. */
static void test_meta(void) {
    bodhi_dataset *second;
    begin("a meta file that comes and goes");
    CHECK(unlink(path_of("meta")) == 0);
    bodhi_io.linkat = taken_linkat;
    second = open_again(BODHI_CREATE);
    bodhi_dataset_close(second);
    bodhi_io = real;
    CHECK(unlink(path_of("meta")) == 0);
    CHECK(bodhi_dataset_open(store, "/run", "g", 1, 0, &second) == BODHI_OK && size_of(path_of("meta")) > 0);
    bodhi_dataset_close(second);
    close_all();
}

/* A dataset that is in use may be deleted with its directory, and made again by others. */
static void test_deleted_directory(void) {
    bodhi_writer *writer;
    begin("a dataset that is deleted while it is open");
    remove_all(path_of(""));
    write_frames(BODHI_NATIVE, 0, FRAMES, 0);
    CHECK(read_all(NULL) == all_frames);
    remove_all(path_of(""));
    bodhi_dataset *second = open_again(BODHI_CREATE);
    CHECK(bodhi_writer_open(second, BODHI_NATIVE, NULL, &writer) == BODHI_OK);
    CHECK(append(writer, 3, ATOMS) == BODHI_OK && bodhi_writer_close(writer) == BODHI_OK);
    bodhi_dataset_close(second);
    CHECK(bodhi_dataset_refresh(run) == BODHI_OK && read_all(NULL) == UINT64_C(1) << 3);
    reopen();
    CHECK(read_all(NULL) == UINT64_C(1) << 3);
    close_all();
}

int main(void) {
    make_home();
    test_stores();
    test_network_file_systems();
    test_meta();
    test_deleted_directory();
    remove_home();
    return 0;
}
