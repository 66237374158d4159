/* Files that are damaged, cut, moved or of another version: nothing wrong is read, and what is whole is found.
 * Stores and datasets that are damaged, somebody else's, or where none may be. */
#include "../scratch.h"
#include "base/bytes.h"
#include "base/crc32c.h"
#include "sample.h"
#include "segments/record.h"
#include "store/dataset.h"
#include "write/writer.h"

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

static void test_of_others(void) {
    begin("a record of another dataset, generation or segment, or with a damaged table");
    unsigned char data[4096];
    record_header header;
    size_t needed;
    bodhi_place at = place_of(5);
    int fd = open(file_of('n', ".seg"), O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0 && pread(fd, data, sizeof data, at.offset) == sizeof data && close(fd) == 0);
    const segment_key own = {.dataset = get64(data + 32), .generation = get64(data + 40), .segment = at.segment};
    CHECK(parse_record(data, sizeof data, &own, (uint64_t)at.offset, &header, &needed) == PARSED);
    for (int i = 0; i < 3; i++) {
        segment_key other = own;
        *(uint64_t *[]){&other.dataset, &other.generation, &other.segment}[i] ^= 1;
        CHECK(parse_record(data, sizeof data, &other, (uint64_t)at.offset, &header, &needed) != PARSED);
    }
    data[RECORD_HEADER_BYTES + 4] ^= 1; /* a block's checksum */
    CHECK(parse_record(data, sizeof data, &own, (uint64_t)at.offset, &header, &needed) == PARSED_DAMAGED);
    close_all();
}

static void test_lost_index(void) {
    static const unsigned char zeros[96];
    begin("an index that is damaged, cut or away");
    overwrite(file_of('n', ".idx"), 64 + 3 * 32, zeros, sizeof zeros);
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
    bodhi_bypass_checksums = true; /* its length alone says so */
    CHECK(read_all(NULL) == (UINT64_C(1) << 12) - 1);
    bodhi_bypass_checksums = false;
    close_all();
}

/* What lies where it was not written is nobody's. */
static void test_misplaced(void) {
    begin_both("records of another segment", FRAMES, 0);
    char first[300];
    char moved[300];
    (void)snprintf(first, sizeof first, "%s", file_of('a', ".seg"));
    (void)snprintf(moved, sizeof moved, "%s", first);
    memcpy(strrchr(moved, '-') + 1, "0123456789abcdef", 16);
    CHECK(rename(first, moved) == 0 && unlink(file_of('a', ".idx")) == 0);
    unsigned char nothing[64] = {0};
    overwrite(moved, 0, nothing, sizeof nothing); /* its header would tell */
    reopen();
    bodhi_facts facts;
    CHECK(bodhi_dataset_query(run, &facts) == BODHI_OK && facts.alien == 0);
    CHECK(unlink(moved) == 0);
    close_all();
    begin_both("entries of another index", FRAMES, 0);
    unsigned char entries[FRAMES * 32];
    int fd = open(file_of('n', ".idx"), O_RDONLY | O_CLOEXEC);
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
    CHECK(bodhi_dataset_query(run, &facts) == BODHI_OK);
    reopen();
    uint64_t listed[FRAMES];
    int64_t count;
    CHECK(bodhi_dataset_query(run, &facts) == BODHI_OK && facts.scanned > 0);
    CHECK(bodhi_dataset_numbers(run, BODHI_ALIEN, 0, listed, FRAMES, &count) == BODHI_OK && count == FRAMES);
    CHECK(read_all(NULL) == all_frames);
    close_all();
}

/* An index that is valid and wrong costs misses, never another frame. */
static void test_lying_index(void) {
    begin("an index that names the wrong frames");
    unsigned char bytes[2][32];
    index_entry entry;
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
    overwrite(file_of('n', ".idx"), 64 + 4 * 32, bytes, sizeof bytes);
    reopen();
    CHECK(read_all(NULL) == (all_frames & ~(UINT64_C(3) << 4)));
    close_all();
}

static void test_other_versions(void) {
    begin("a segment of another version");
    static const unsigned char zeros[4];
    char path[300];
    (void)snprintf(path, sizeof path, "%s", file_of('n', ".seg"));
    uint32_t header[16] = {MAGIC_SEGMENT, 99, 64};
    uint32_t crc = bodhi_crc32c(bodhi_crc32c(0, header, 12), zeros, 4);
    header[3] = bodhi_crc32c(crc, header + 4, 48);
    overwrite(path, 0, header, sizeof header);
    bodhi_stored_segment *listed = list_segments(1);
    CHECK(bodhi_store_evict(store, &listed[0]) == BODHI_ERROR_VERSION && size_of(path) > 0);
    free(listed);
    close_all();
}

/* A segment that nobody could repair when it was opened is repaired before it is written to. */
static void test_late_repair(void) {
    begin("an index that lacks entries while a writer holds its segment");
    int fd = open(file_of('n', ".seg"), O_RDWR | O_CLOEXEC);
    CHECK(io_lock(fd, LOCK_WRITER, true) == LOCK_GOT);
    flip(file_of('n', ".idx"), 64 + 3 * 32);
    reopen();
    CHECK(read_all(NULL) == all_frames); /* which are not still to come */
    CHECK(truncate(file_of('n', ".idx"), 64 + 3 * 32) == 0);
    reopen();
    CHECK(place_of(2).found == 1 && place_of(3).found == 0);
    (void)close(fd);
    write_frames(BODHI_NATIVE, 300, 303, 0);
    reopen();
    CHECK(read_all(NULL) == all_frames && is_there(300) && is_there(302));
    close_all();
}

static ssize_t full_pwritev(int fd, const struct iovec *parts, int n, off_t offset) {
    (void)fd, (void)parts, (void)n, (void)offset;
    errno = ENOSPC;
    return -1;
}

/* An index that finds no room when it is made anew takes no other's place. */
static void test_no_room_for_an_index(void) {
    begin("an index that finds no room");
    int64_t size = size_of(file_of('n', ".idx"));
    int fd = open(file_of('n', ".seg"), O_RDWR | O_CLOEXEC);
    bodhi_io.pwritev = full_pwritev;
    CHECK(fd >= 0 && segment_recover(run->fd, run->segments[0], fd) == ENOSPC);
    bodhi_io = real;
    CHECK(close(fd) == 0 && size_of(file_of('n', ".idx")) == size && read_all(NULL) == all_frames);
    close_all();
}

static long pretended; /* magic of the file system */

static int pretend_fstatfs(int fd, struct statfs *status) {
    int result = fstatfs(fd, status);
    status->f_type = pretended;
    return result;
}

/* --- Verifying ---------------------------------------------------------------------------------------------------- */

static off_t bad_sector;

static ssize_t read_around_bad_sector(int fd, const struct iovec *parts, int n, off_t offset, int flags) {
    if (offset <= bad_sector && bad_sector < offset + (off_t)parts->iov_len) {
        errno = EIO;
        return -1;
    }
    return real.preadv2(fd, parts, n, offset, flags);
}

/* Read back all frames of the one segment, as its index tells of them: just these are bad. Returns why the last is. */
static const char *verify(uint64_t expected, uint64_t lost) {
    static char reason[128];
    segment s;
    findings content = {0};
    uint64_t bad = 0;
    uint64_t sound = 0;
    char *name = strrchr(file_of('n', ".seg"), '/') + 1;
    CHECK(segment_from_name(&s, name, run->key.dataset, run->key.generation));
    CHECK(segment_load(run->fd, &s, 0, LOAD_UNSEALED | LOAD_BEYOND, &content) == 0);
    int fd = openat(run->fd, s.name, O_RDONLY | O_CLOEXEC);
    *reason = '\0';
    for (size_t i = 0; i < content.n_places; i++) {
        const place *at = &content.places[i];
        stored_frame stored;
        int status = stored_read(fd, &s.key, (uint64_t)at->offset * UNIT, (uint64_t)at->length * UNIT, &stored);
        CHECK(status == BODHI_OK || status == BODHI_MISS);
        *(status == BODHI_OK ? &sound : &bad) |= UINT64_C(1) << at->number;
        if (status == BODHI_OK) {
            stored_free(&stored);
        } else {
            (void)snprintf(reason, sizeof reason, "%s", bodhi_message());
        }
    }
    CHECK(close(fd) == 0 && bad == expected && content.lost == lost && ((sound | bad) == all_frames || lost > 0));
    findings_free(&content);
    return reason;
}

static void test_verifying(void) {
    begin("a segment that is verified");
    CHECK(strcmp(verify(0, 0), "") == 0);
    bodhi_place at = place_of(5);
    bad_sector = at.offset + 500;
    bodhi_io.preadv2 = read_around_bad_sector;
    CHECK(strcmp(verify(1 << 5, 0), "the disk says: Input/output error") == 0);
    bodhi_io = real;
    flip(file_of('n', ".seg"), at.offset + at.length - 64);
    CHECK(strstr(verify(1 << 5, 0), "damaged (checksum)") != NULL);
    flip(file_of('n', ".seg"), at.offset + 20);
    CHECK(strstr(verify(1 << 5, 0), "header is damaged") != NULL);
    char index[256];
    (void)snprintf(index, sizeof index, "%s", file_of('n', ".idx"));
    CHECK(rename(index, path_of("idx")) == 0);
    CHECK(strcmp(verify(0, (uint64_t)at.length), "") == 0);
    CHECK(rename(path_of("idx"), index) == 0);
    bodhi_place last = place_of(18);
    CHECK(truncate(file_of('n', ".seg"), last.offset + 100) == 0);
    CHECK(strstr(verify(1 << 5 | 3 << 18, 0), "cut off") != NULL);
    close_all();
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
    test_damaged_payload();
    test_of_others();
    test_lost_index();
    test_torn_segment();
    test_cut_while_open();
    test_misplaced();
    test_lying_index();
    test_other_versions();
    test_late_repair();
    test_no_room_for_an_index();
    test_verifying();
    remove_home();
    return 0;
}
