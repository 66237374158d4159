/* Frames that are there already, and what a writer may say of them. */
#include "sample.h"
#include "store/dataset.h"
#include "syncs.h"

static int failing_errno; /* of opening segments for reading; 0: none */

static int failing_openat(int directory, const char *path, int flags, mode_t mode) {
    if (failing_errno != 0 && (flags & O_ACCMODE) == O_RDONLY && strstr(path, ".seg") != NULL) {
        errno = failing_errno;
        return -1;
    }
    return real.openat(directory, path, flags, mode);
}

static int append_one(int64_t number, int *flushed) {
    bodhi_writer *writer = open_writer(BODHI_NATIVE);
    int status = append(writer, number, ATOMS);
    *flushed = bodhi_flush(writer, 1);
    CHECK(bodhi_writer_close(writer) <= 0);
    return status;
}

/* A frame that was there is acknowledged only if it can be read back and is on disk; what failed once is not taken for
 * a failure for good, but for a failed sync, of which nothing is known any more. */
static void test_existing_frames(void) {
    int flushed;
    begin_empty("frames that are there");
    bodhi_io.openat = failing_openat;
    watch_syncs();
    CHECK(append_one(BODHI_MAX_NUMBER, &flushed) == BODHI_OK && is_there(BODHI_MAX_NUMBER));
    CHECK(append_one(BODHI_MAX_NUMBER + 1, &flushed) == BODHI_ERROR_ARGUMENT && flushed == BODHI_OK);
    CHECK(append_one(0, &flushed) == BODHI_OK && flushed == BODHI_OK);
    CHECK(append_one(0, &flushed) == BODHI_EXISTS && flushed == BODHI_OK);
    for (int64_t beyond = 0; beyond < 2; beyond++) {
        const bodhi_write_options most = {.block_atoms = UINT32_MAX / 16 + beyond};
        bodhi_writer *writer = NULL;
        CHECK(bodhi_writer_open(run, 0, &most, &writer) == (beyond == 0 ? BODHI_OK : BODHI_ERROR_ARGUMENT));
        CHECK(bodhi_writer_close(writer) == BODHI_OK);
    }
    failing_errno = EMFILE;
    CHECK(append_one(0, &flushed) == BODHI_ERROR_SYSTEM);
    failing_errno = 0;
    CHECK(append_one(0, &flushed) == BODHI_EXISTS && flushed == BODHI_OK);
    atomic_store(&sync_fails, true);
    CHECK(append_one(0, &flushed) == BODHI_EXISTS && flushed == BODHI_ERROR_SYSTEM);
    CHECK(append_one(0, &flushed) == BODHI_OK && flushed == BODHI_OK); /* elsewhere */
    CHECK(append_one(0, &flushed) == BODHI_EXISTS && flushed == BODHI_OK);
    forget_syncs(); /* its number is free for another file soon */
    bodhi_dataset *other = open_again(0);
    bodhi_segment_facts facts[4];
    int64_t n;
    bodhi_place at;
    CHECK(bodhi_dataset_segments(other, facts, 4, &n) == BODHI_OK && n == 2);
    for (int64_t i = 0; i < n; i++) {
        bodhi_stored_segment stored = {.id = facts[i].id, .kind = facts[i].kind};
        memcpy(stored.directory, bodhi_dataset_directory(other), sizeof other->directory);
        CHECK(bodhi_store_evict(store, &stored) == BODHI_OK);
    }
    CHECK(append_one(0, &flushed) == BODHI_OK && flushed == BODHI_OK);
    CHECK(bodhi_dataset_refresh(other) == BODHI_OK);
    CHECK(bodhi_dataset_locate(other, &(int64_t){0}, 1, &at) == BODHI_OK && at.found && at.kind == BODHI_NATIVE);
    drop_frames(other, &(int64_t){0}, 1);
    CHECK(append_one(0, &flushed) == BODHI_OK && flushed == BODHI_OK);
    CHECK(append_one(0, &flushed) == BODHI_EXISTS && flushed == BODHI_OK);
    bodhi_dataset_close(other);
    close_all();
}

/* A frame that is there is taken once more if it is the same to the last bit. */
static void test_other_frames(void) {
    float positions[ATOMS * 3] = {0};
    float box[6] = {30, 40, 50, 90, 80, 70};
    begin_empty("frames of one number that differ");
    bodhi_writer *writer = open_writer(BODHI_NATIVE);
    bodhi_frame frame = {.number = 1, .n_atoms = ATOMS, .positions = positions, .box = box};
    CHECK(bodhi_append(writer, &frame) == BODHI_OK);
    CHECK(bodhi_append(writer, &frame) == BODHI_EXISTS);
    frame.time = 1;
    CHECK(bodhi_append(writer, &frame) == BODHI_ERROR_CONFLICT);
    frame.time = 0;
    box[5] = 71;
    CHECK(bodhi_append(writer, &frame) == BODHI_ERROR_CONFLICT);
    box[5] = 70;
    positions[ATOMS * 3 - 1] += 1;
    CHECK(bodhi_append(writer, &frame) == BODHI_ERROR_CONFLICT);
    CHECK(bodhi_writer_close(writer) == BODHI_OK);
    close_all();
}

/* A copy that is damaged is passed over, and the frame written again. */
static void test_damaged_copy(void) {
    begin("a frame whose copy is damaged");
    bodhi_place at = place_of(5);
    flip(file_of('n', ".seg"), at.offset + at.length - 64);
    (void)alarm(10); /* a search that does not end */
    bodhi_writer *writer = open_writer(BODHI_NATIVE);
    CHECK(append(writer, 5, ATOMS) == BODHI_OK && append(writer, 6, ATOMS) == BODHI_EXISTS);
    CHECK(bodhi_writer_close(writer) == BODHI_OK);
    (void)alarm(0);
    reopen();
    CHECK(read_all(NULL) == all_frames);
    close_all();
}

int main(void) {
    make_home();
    test_existing_frames();
    test_other_frames();
    test_damaged_copy();
    remove_home();
    return 0;
}
