/* Writing and mapping the table of a segment; see frame_table.h. */
#include "segments/frame_table.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/io.h"

/* Behind the header that all files of a segment have; the checksum is of all that follows it. */
enum { CRC_AT = 64, COVERED_AT = 72, INDEX_AT = 80, INODE_AT = 88, FRAMES_AT = 96, STEP_AT = 104, AT_ONCE = 1 << 20 };

_Static_assert(sizeof(place) == 24 && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "places are in files as in memory");

void sealed_name(const segment *s, char name[SEGMENT_NAME]) {
    memcpy(name, s->name, SEGMENT_NAME);
    char *dot = strrchr(name, '.');
    memcpy(dot == NULL ? name : dot, ".tab", 5);
}

bool sealed_write(int directory, const segment *s, const place *places, size_t n) {
    unsigned char head[TABLE_HEAD_BYTES] = {0};
    char name[SEGMENT_NAME];
    write_file_header(head, MAGIC_TABLE, &s->key, s->kind);
    put64(head + COVERED_AT, s->covered);
    put64(head + INDEX_AT, s->index_at);
    put64(head + INODE_AT, s->index_inode);
    put64(head + FRAMES_AT, n);
    put64(head + STEP_AT, even_step(places, n));
    uint32_t crc = bodhi_crc32c(0, head + CRC_AT + 4, TABLE_HEAD_BYTES - CRC_AT - 4);
    put32(head + CRC_AT, bodhi_crc32c(crc, places, n * sizeof *places));
    const struct iovec parts[2] = {{.iov_base = head, .iov_len = sizeof head},
                                   {.iov_base = (void *)(uintptr_t)places, .iov_len = n * sizeof *places}};
    io_temporary file;
    sealed_name(s, name);
    return io_begin_file(&file, directory) &&
           io_end_file(&file, io_write_parts(file.fd, parts, 2, 0), name, FILE_UNSYNCED);
}

static bool read_head(int fd, const segment *s, unsigned char head[TABLE_HEAD_BYTES]) {
    unsigned version;
    return io_read(fd, head, TABLE_HEAD_BYTES, 0, READ_ANY) == TABLE_HEAD_BYTES &&
           parse_file_header(head, SEGMENT_HEADER_BYTES, MAGIC_TABLE, &s->key, s->kind, &version) == PARSED;
}

/* Whether the table is what was written. It is read before it is mapped: a bad sector is an error, and no signal. */
static bool is_whole(int fd, const unsigned char *head, uint64_t size) {
    uint32_t crc = bodhi_crc32c(0, head + CRC_AT + 4, TABLE_HEAD_BYTES - CRC_AT - 4);
    unsigned char *buffer = malloc(AT_ONCE);
    ssize_t got = 0;
    uint64_t at = TABLE_HEAD_BYTES;
    for (; buffer != NULL && at < size; at += (uint64_t)got) {
        got = io_read(fd, buffer, AT_ONCE, at, READ_ANY);
        if (got <= 0) {
            break;
        }
        crc = bodhi_crc32c(crc, buffer, (size_t)got);
    }
    free(buffer);
    return at == size && crc == get32(head + CRC_AT);
}

bool sealed_open(int directory, segment *s, uint32_t ordinal, uint64_t size, sealed_run *run) {
    char name[SEGMENT_NAME];
    unsigned char head[TABLE_HEAD_BYTES];
    struct stat status;
    sealed_name(s, name);
    int fd = io_open(directory, name, O_RDONLY);
    bool right = fd >= 0 && bodhi_io.fstat(fd, &status) == 0 && read_head(fd, s, head) &&
                 get64(head + COVERED_AT) <= size && get64(head + FRAMES_AT) > 0 &&
                 get64(head + FRAMES_AT) <= (uint64_t)status.st_size / sizeof(place) &&
                 sealed_bytes(get64(head + FRAMES_AT)) == (uint64_t)status.st_size &&
                 is_whole(fd, head, (uint64_t)status.st_size);
    void *mapping = right ? mmap(NULL, (size_t)status.st_size, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0) : MAP_FAILED;
    io_drop(fd);
    if (mapping == MAP_FAILED) {
        return false;
    }
    *run = (sealed_run){.places = (place *)((char *)mapping + TABLE_HEAD_BYTES),
                        .n = get64(head + FRAMES_AT),
                        .step = get64(head + STEP_AT),
                        .segment = ordinal,
                        .mapping = mapping,
                        .bytes = (size_t)status.st_size};
    s->sealed = run->n;
    s->covered = s->index_covered = get64(head + COVERED_AT);
    s->index_at = get64(head + INDEX_AT);
    s->index_inode = (ino_t)get64(head + INODE_AT);
    return true;
}

void sealed_unlink_stale(int directory, const segment *s, uint64_t size) {
    char name[SEGMENT_NAME];
    unsigned char head[TABLE_HEAD_BYTES];
    sealed_name(s, name);
    int fd = io_open(directory, name, O_RDONLY);
    if (fd >= 0 && read_head(fd, s, head) && get64(head + COVERED_AT) > size) {
        (void)bodhi_io.unlinkat(directory, name, 0);
    }
    io_drop(fd);
}
