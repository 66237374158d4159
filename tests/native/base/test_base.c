/* Tests of what every room needs: checksums, the proof of the key, loops around system calls, statuses, the
 * clock, arrays. */
#include <dlfcn.h>

#include "../check.h"
#include "../scratch.h"
#include "base/crc32c.h"
#include "base/io.h"
#include "base/mac.h"
#include "base/memory.h"
#include "base/status.h"
#include "base/threads.h"

char doing[256];
static char scratch[64];
static bodhi_calls real;
static bool libcrypto_is_hidden;

static void test_checksums(void) {
    CHECK(bodhi_crc32c(0, "123456789", 9) == 0xE3069283U);
    CHECK(bodhi_crc32c(bodhi_crc32c(0, "1234", 4), "56789", 5) == 0xE3069283U);
    CHECK(bodhi_crc32c_portable(0, "123456789", 9) == 0xE3069283U);
    CHECK(bodhi_crc32c_portable(bodhi_crc32c_portable(0, "1234", 4), "56789", 5) == 0xE3069283U);
}

static void test_ways_to_checksum(void) {
    unsigned char data[5000];
    for (size_t i = 0; i < sizeof data; i++) {
        data[i] = (unsigned char)(i * 2654435761U >> 13);
    }
    for (size_t size = 0; size < sizeof data - 16; size += 1 + size / 64) {
        const uint32_t before = (uint32_t)size;
        const unsigned char *start = data + size % 16;
        CHECK(bodhi_crc32c(before, start, size) == bodhi_crc32c_portable(before, start, size));
    }
}

/* RFC 4231, cases 1, 2 and 6. */
static void test_hmac(void) {
    static const uint8_t first[] = {0xb0, 0x34, 0x4c, 0x61}, second[] = {0x5b, 0xdc, 0xc1, 0x46};
    static const uint8_t sixth[] = {0x60, 0xe4, 0x31, 0x59};
    static const char text[] = "Test Using Larger Than Block-Size Key - Hash Key First";
    uint8_t key[131];
    uint8_t out[HMAC_BYTES];
    memset(key, 0x0b, 20);
    CHECK(mac_hmac(key, 20, &(mac_part){"Hi There", 8}, 1, out) == BODHI_OK);
    CHECK(memcmp(out, first, sizeof first) == 0);
    CHECK(mac_hmac("Jefe", 4, (mac_part[]){{"what do ya want ", 16}, {"for nothing?", 12}}, 2, out) == BODHI_OK);
    CHECK(memcmp(out, second, sizeof second) == 0);
    memset(key, 0xaa, sizeof key);
    CHECK(mac_hmac(key, sizeof key, &(mac_part){text, sizeof text - 1}, 1, out) == BODHI_OK);
    CHECK(memcmp(out, sixth, sizeof sixth) == 0);
}

/* Each message's tag is its own: of its bytes however they are cut, its sender, its number and the session. */
static void test_macs(void) {
    enum { SIZE = 100000 };
    uint8_t key[MAC_KEY] = {1, 2, 3};
    uint8_t tags[3][MAC_BYTES];
    uint8_t *bytes = calloc(SIZE, 1);
    CHECK(bytes != NULL);
    for (size_t i = 0; i < SIZE; i++) {
        bytes[i] = (uint8_t)(i * 7 + (i >> 8));
    }
    for (size_t size = 0; size <= SIZE; size = size * 9 + 1) {
        const mac_part whole = {bytes, size};
        size_t a = size / 1000, b = a + size / 5000, c = b + size / 3;
        const mac_part cut[] = {{bytes, a}, {bytes + a, b - a}, {bytes + b, c - b}, {bytes + c, size - c}};
        mac_stream ours;
        mac_stream theirs;
        mac_begin(&ours, key, true);
        mac_begin(&theirs, key, true);
        mac_next(&ours, &whole, 1, tags[0]);
        mac_next(&ours, &whole, 1, tags[1]);
        CHECK(memcmp(tags[0], tags[1], MAC_BYTES) != 0);
        CHECK(mac_is_next(&theirs, cut, 4, tags[0]));
        CHECK(mac_is_next(&theirs, cut, 4, tags[1]));
        CHECK(!mac_is_next(&theirs, cut, 4, tags[1])); /* it was said already */
        mac_begin(&theirs, key, false);
        CHECK(!mac_is_next(&theirs, &whole, 1, tags[0])); /* the other side says it */
        mac_begin(&theirs, key, true);
        tags[0][MAC_BYTES - 1] ^= 1;
        CHECK(!mac_is_next(&theirs, &whole, 1, tags[0]));
        key[MAC_KEY - 1] ^= 1; /* another session */
        mac_begin(&ours, key, true);
        mac_next(&ours, &whole, 1, tags[2]);
        tags[0][MAC_BYTES - 1] ^= 1;
        CHECK(memcmp(tags[0], tags[2], MAC_BYTES) != 0);
    }
    free(bytes);
}

/* In place of the C library's, for the library as for the test. */
void *dlopen(const char *name, int mode) {
    void *(*found)(const char *, int);
    void *next = dlsym(RTLD_NEXT, "dlopen");
    memcpy(&found, &next, sizeof found);
    return found(libcrypto_is_hidden ? "no-library.so" : name, mode);
}

/* Without libcrypto: what needs it says so, nothing counts as authentic, and the rest goes on. */
static void test_without_libcrypto(void) {
    const uint8_t key[MAC_KEY] = {1};
    const mac_part part = {"a message", 9};
    uint8_t out[HMAC_BYTES] = {0};
    uint8_t tag[MAC_BYTES] = {1};
    mac_stream ours;
    mac_stream theirs;
    pid_t child = fork(); /* it is looked for once in a process */
    if (child != 0) {
        int ended = 0;
        CHECK(child > 0 && waitpid(child, &ended, 0) == child && ended == 0);
        return;
    }
    libcrypto_is_hidden = true;
    CHECK(mac_find() == BODHI_ERROR_SYSTEM && mac_hmac(key, sizeof key, &part, 1, out) == BODHI_ERROR_SYSTEM);
    CHECK(strstr(bodhi_message(), "libcrypto") && strstr(bodhi_message(), "libssl3"));
    CHECK(strstr(bodhi_message(), "no-library.so") && !mac_is_same(out, out, 1));
    mac_begin(&ours, key, true);
    mac_begin(&theirs, key, true);
    mac_next(&ours, &part, 1, tag);
    CHECK(tag[0] == 0 && !mac_is_next(&theirs, &part, 1, tag));
    test_checksums();
    _exit(0);
}

static void test_statuses(void) {
    CHECK(bodhi_fail_system(ENOSPC, "write", "x") == BODHI_ERROR_FULL);
    CHECK(bodhi_fail_system(EDQUOT, "write", "x") == BODHI_ERROR_FULL);
    CHECK(bodhi_fail_system(ENOMEM, "write", "x") == BODHI_ERROR_MEMORY);
    CHECK(bodhi_fail_system(EIO, "write", "x") == BODHI_ERROR_SYSTEM && strstr(bodhi_message(), "write failed"));
    CHECK(strcmp(bodhi_status_name(BODHI_ERROR_FULL), "full") == 0);
    CHECK(strcmp(bodhi_status_name(77), "unknown status") == 0);
}

static void test_clock(void) {
    int64_t begin = now_ms();
    (void)usleep(30000);
    CHECK(now_ms() - begin >= 25 && now_ms() - begin < 60000);
}

/* --- System calls ------------------------------------------------------------------------------------------------ */

static char order[64]; /* what was called, a letter each */
static ino_t synced;

static void note(char letter) {
    size_t n = strlen(order);
    CHECK(n + 1 < sizeof order);
    order[n] = letter;
}

static ssize_t bytewise_pwritev(int fd, const struct iovec *parts, int n, off_t offset) {
    struct iovec one = {.iov_base = parts->iov_base, .iov_len = parts->iov_len > 0 ? 1 : 0};
    (void)n;
    return real.pwritev(fd, &one, 1, offset);
}

static ssize_t interrupted_preadv2(int fd, const struct iovec *parts, int n, off_t offset, int flags) {
    static bool again;
    again = !again;
    errno = EINTR;
    return again ? -1 : real.preadv2(fd, parts, n, offset, flags);
}

static int noted_fdatasync(int fd) {
    struct stat status;
    CHECK(fstat(fd, &status) == 0);
    synced = status.st_ino;
    note('s');
    return 0;
}

static int failing_fdatasync(int fd) {
    (void)fd;
    errno = EIO;
    return -1;
}

static int noted_renameat(int a, const char *b, int c, const char *d) {
    note('r');
    return real.renameat(a, b, c, d);
}

static int unreadable_openat(int directory, const char *path, int flags, mode_t mode) {
    errno = EACCES;
    return strcmp(path, "..") == 0 ? -1 : real.openat(directory, path, flags, mode);
}

static int noted_syncfs(int fd) {
    (void)fd;
    note('f');
    return 0;
}

static void test_reading_and_writing(int directory) {
    char bytes[16] = "";
    int fd = io_open(directory, "file", O_RDWR | O_CREAT);
    bodhi_io.pwritev = bytewise_pwritev;
    bodhi_io.preadv2 = interrupted_preadv2;
    CHECK(fd >= 0 && io_write(fd, "ab", 2, 0) && io_write(fd, "cdef", 4, 2));
    CHECK(io_read(fd, bytes, sizeof bytes, 1, READ_ANY) == 5 && memcmp(bytes, "bcdef", 5) == 0);
    bodhi_io = real;
    CHECK(io_write(fd, "abcdef", 6, 6) && io_read(fd, bytes, sizeof bytes, 0, READ_ANY) == 12);
    CHECK(memcmp(bytes, "abcdefabcdef", 12) == 0);
    bodhi_io.fdatasync = failing_fdatasync;
    CHECK(!io_sync(fd) && errno == EIO);
    bodhi_io = real;
    CHECK(io_close(fd));
}

static void check_content(int directory, const char *name, const char *content) {
    char bytes[16] = "";
    int fd = io_open(directory, name, O_RDONLY);
    CHECK(fd >= 0 && io_read(fd, bytes, sizeof bytes - 1, 0, READ_ANY) == (ssize_t)strlen(content));
    CHECK(strcmp(bytes, content) == 0 && io_close(fd));
}

static void test_small_files(int directory) {
    CHECK(io_write_file(directory, "small", "one", 3, false));
    CHECK(!io_write_file(directory, "small", "two", 3, false) && errno == EEXIST);
    check_content(directory, "small", "one");
    bodhi_io.fdatasync = noted_fdatasync;
    bodhi_io.renameat = noted_renameat;
    CHECK(io_write_file(directory, "small", "three", 5, true));
    CHECK(strcmp(order, "sr") == 0); /* on disk before it is in its place */
    bodhi_io = real;
    check_content(directory, "small", "three");
}

static void test_locks(int directory) {
    int one = io_open(directory, "file", O_RDWR);
    int other = io_open(directory, "file", O_RDWR);
    CHECK(io_lock(one, 3, true) == LOCK_GOT && io_lock(other, 3, true) == LOCK_HELD && io_locked(other, 3));
    CHECK(io_lock(other, 3, false) == LOCK_HELD && io_lock(other, 4, true) == LOCK_GOT);
    io_unlock(one, 3);
    CHECK(!io_locked(other, 3) && io_lock(other, 3, true) == LOCK_GOT);
    CHECK(io_close(one) && io_close(other));
}

static int disturbed; /* times */

static int disturbed_dup3(int from, int onto, int flags) {
    errno = disturbed == 0 ? EINTR : EBUSY;
    return disturbed++ < 2 ? -1 : real.dup3(from, onto, flags);
}

static void test_replacing(int directory) {
    int one = io_open(directory, "file", O_RDWR);
    int other = io_open(directory, "small", O_RDWR);
    struct stat status[2];
    bodhi_io.dup3 = disturbed_dup3;
    CHECK(io_replace(one, other) && disturbed == 3);
    bodhi_io = real;
    CHECK(fstat(one, &status[0]) == 0 && fstat(other, &status[1]) == 0 && status[0].st_ino == status[1].st_ino);
    CHECK(io_close(one) && io_close(other));
}

static void test_arrays(void) {
    uint32_t *numbers = NULL;
    size_t capacity = 0;
    int moves = 0;
    for (uint32_t i = 0; i < 100000; i++) {
        size_t before = capacity;
        CHECK(ARRAY_GROW(numbers, capacity, i + 1) && capacity > i);
        moves += capacity != before;
        numbers[i] = 3 * i;
    }
    CHECK(moves < 20);
    size_t before = capacity;
    const uint32_t *kept = numbers;
    CHECK(!ARRAY_GROW(numbers, capacity, SIZE_MAX / 4 + 2) && !ARRAY_FIT(numbers, capacity, SIZE_MAX / 4 + 2));
    CHECK(capacity == before && numbers == kept);
    CHECK(ARRAY_FIT(numbers, capacity, before) && capacity == before);
    CHECK(ARRAY_FIT(numbers, capacity, before + 1) && capacity == before + 1);
    for (uint32_t i = 0; i < 100000; i++) {
        CHECK(numbers[i] == 3 * i);
    }
    for (size_t n = 0; n < 40; n++) {
        for (uint32_t wanted = 0; wanted < 125; wanted++) {
            size_t at;
            ARRAY_SEARCH(at, n, i, numbers[i] < wanted);
            CHECK(at <= n && (at == n || numbers[at] >= wanted) && (at == 0 || numbers[at - 1] < wanted));
        }
    }
    free(numbers);
}

static void test_syncing_the_parent(int directory) {
    struct stat parent;
    CHECK(mkdirat(directory, "below", 0700) == 0 && fstat(directory, &parent) == 0);
    int below = io_open(directory, "below", O_RDONLY | O_DIRECTORY);
    bodhi_io.fdatasync = noted_fdatasync;
    bodhi_io.syncfs = noted_syncfs;
    synced = 0;
    CHECK(io_sync_parent(below) && synced == parent.st_ino);
    memset(order, 0, sizeof order);
    bodhi_io.openat = unreadable_openat;
    CHECK(io_sync_parent(below) && strcmp(order, "f") == 0);
    bodhi_io = real;
    CHECK(io_close(below) && unlinkat(directory, "below", AT_REMOVEDIR) == 0);
}

int main(void) {
    real = bodhi_io;
    CHECK(make_scratch(scratch, sizeof scratch, "/tmp"));
    int directory = open(scratch, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    test_checksums();
    test_ways_to_checksum();
    test_without_libcrypto(); /* before anything looks for it */
    test_hmac();
    test_macs();
    test_statuses();
    test_clock();
    test_arrays();
    test_reading_and_writing(directory);
    test_small_files(directory);
    test_locks(directory);
    test_replacing(directory);
    test_syncing_the_parent(directory);
    CHECK(unlinkat(directory, "file", 0) == 0 && unlinkat(directory, "small", 0) == 0);
    (void)close(directory);
    CHECK(rmdir(scratch) == 0);
    return 0;
}
