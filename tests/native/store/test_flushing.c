/* Durable flushes: what they sync, and what a failed sync makes of it. */
#include <dirent.h>

#include "../scratch.h"
#include "sample.h"
#include "syncs.h"
#include "write/writer.h"

enum { SMALL_SEGMENT = 40000 /* two frames */ };

/* The dataset's segments that were not synced. */
static int count_unsynced(void) {
    int n = 0;
    DIR *listed = opendir(path_of(""));
    const struct dirent *entry;
    while ((entry = readdir(listed)) != NULL) {
        n += strstr(entry->d_name, ".seg") != NULL && !is_synced(path_of(entry->d_name));
    }
    (void)closedir(listed);
    return n;
}

static bool names_are_synced(void) {
    return is_synced(path_of(""));
}

static bodhi_writer *writer_with(int64_t first, int64_t last) {
    bodhi_writer *writer;
    bodhi_write_options options = {.segment_bytes = SMALL_SEGMENT};
    CHECK(bodhi_writer_open(run, BODHI_NATIVE, &options, &writer) == BODHI_OK);
    append_frames(writer, first, last);
    forget_syncs();
    return writer;
}

static void watch(const char *what) {
    begin_empty(what);
    watch_syncs();
}

/* Segments that are full, that which is written to, and the names of both. */
static void test_durable_flush(void) {
    char parent[sizeof home + 4];
    watch("what a durable flush syncs");
    (void)snprintf(parent, sizeof parent, "%s/..", home);
    bodhi_writer *writer = writer_with(0, 10);
    CHECK(bodhi_flush(writer, 1) == BODHI_OK && count_files('n') == 10 && count_unsynced() == 0);
    CHECK(names_are_synced() && is_synced(home) && is_synced(parent));
    CHECK(append(writer, 10, ATOMS) == BODHI_OK && bodhi_writer_close(writer) == BODHI_OK);
    writer = writer_with(11, 12); /* beside frame 10, in a segment whose name nobody has synced */
    CHECK(bodhi_flush(writer, 1) == BODHI_OK && count_files('n') == 12 && names_are_synced());
    CHECK(bodhi_writer_close(writer) == BODHI_OK);
    close_all();
}

/* More full segments than a writer keeps for its next durable flush. */
static void test_many_segments(void) {
    watch("a durable flush of many segments");
    bodhi_writer *writer = writer_with(0, 0);
    append_frames(writer, 0, FRAMES + 10);
    CHECK(bodhi_flush(writer, 1) == BODHI_OK && count_files('n') > 2 * MAX_UNSYNCED && count_unsynced() == 0);
    CHECK(bodhi_writer_close(writer) == BODHI_OK);
    close_all();
}

/* A segment that was evicted after its writer had left it fails no durable flush. */
static void test_evicted_segment(void) {
    watch("a durable flush of a segment that was evicted");
    bodhi_writer *writer = writer_with(0, 6);
    bodhi_stored_segment *listed = list_segments(3);
    CHECK(bodhi_store_evict(store, &listed[0]) == BODHI_OK || bodhi_store_evict(store, &listed[1]) == BODHI_OK);
    CHECK(bodhi_flush(writer, 1) == BODHI_OK && count_unsynced() == 0);
    CHECK(bodhi_writer_close(writer) == BODHI_OK);
    free(listed);
    close_all();
}

/* Of what a failed sync was to bring to disk nothing is known: nothing of it counts as there. */
static void test_failed_sync(void) {
    watch("a sync that fails");
    bodhi_writer *writer = writer_with(0, 1);
    atomic_store(&sync_fails, true);
    CHECK(bodhi_flush(writer, 1) == BODHI_ERROR_SYSTEM);
    CHECK(bodhi_flush(writer, 1) == BODHI_ERROR_POISONED);
    CHECK(bodhi_writer_close(writer) <= 0);
    writer = writer_with(0, 1); /* it does not EXIST */
    CHECK(bodhi_flush(writer, 1) == BODHI_OK && bodhi_writer_close(writer) == BODHI_OK);
    close_all();
}

/* Frames of a full segment, of which the sync has failed, are there for nobody: a second sync would say that they are
 * on the disk. */
static void test_failed_sync_of_a_full_segment(void) {
    watch("a sync of a full segment that fails");
    bodhi_writer *writer = writer_with(0, 1);
    CHECK(bodhi_flush(writer, 1) == BODHI_OK && append(writer, 1, ATOMS) == BODHI_OK);
    atomic_store(&sync_fails, true);
    int status = append(writer, 2, ATOMS);
    status = status < 0 ? status : bodhi_flush(writer, 1);
    CHECK(status == BODHI_ERROR_SYSTEM && bodhi_writer_close(writer) <= 0);
    reopen(); /* as another process does */
    CHECK(place_of(0).found && !place_of(1).found && !place_of(2).found);
    writer = writer_with(0, 0);
    CHECK(append(writer, 1, ATOMS) == BODHI_OK && bodhi_writer_close(writer) == BODHI_OK);
    close_all();
}

/* The names of a directory that was made again are known to nobody's disk. */
static void test_new_directory(void) {
    watch("a durable flush into a directory that was made again");
    bodhi_writer *writer = writer_with(0, 2);
    CHECK(bodhi_flush(writer, 1) == BODHI_OK && is_synced(home) && bodhi_writer_close(writer) == BODHI_OK);
    writer = writer_with(2, 3);
    CHECK(bodhi_flush(writer, 1) == BODHI_OK && !is_synced(home) && bodhi_writer_close(writer) == BODHI_OK);
    remove_all(path_of(""));
    writer = writer_with(0, 2);
    CHECK(bodhi_flush(writer, 1) == BODHI_OK && names_are_synced() && is_synced(home));
    CHECK(bodhi_writer_close(writer) == BODHI_OK);
    close_all();
}

int main(void) {
    make_home();
    test_durable_flush();
    test_evicted_segment();
    test_many_segments();
    test_failed_sync();
    test_failed_sync_of_a_full_segment();
    test_new_directory();
    remove_home();
    return 0;
}
