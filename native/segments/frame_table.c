/* The table of a segment: writing, opening and asking it; see frame_table.h. */
#include "segments/frame_table.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc32c.h"
#include "base/io.h"
#include "base/memory.h"

void sealed_name(const segment *s, char name[SEGMENT_NAME]) {
    memcpy(name, s->name, SEGMENT_NAME);
    char *dot = strrchr(name, '.');
    memcpy(dot == NULL ? name : dot, ".tab", 5);
}

static uint64_t count_blocks(uint64_t frames) {
    return (frames + BLOCK_FRAMES - 1) / BLOCK_FRAMES;
}

static size_t count_places(const table_facts *f, size_t block) {
    uint64_t left = f->frames - (uint64_t)block * BLOCK_FRAMES;
    return left < BLOCK_FRAMES ? (size_t)left : BLOCK_FRAMES;
}

/* Where place number `i` begins in the file; that behind the last: where the file ends. */
static uint64_t place_at(uint64_t frames, uint64_t n_tombstones, uint64_t i) {
    return TABLE_HEAD_BYTES + count_blocks(frames) * BLOCK_BYTES + n_tombstones * TOMBSTONE_ENTRY_BYTES +
           i * PLACE_BYTES;
}

uint64_t sealed_bytes(const findings *content) {
    return place_at(content->n_places, content->n_tombstones, content->n_places);
}

/* The checksum of what is read when a table is opened. */
static uint32_t checksum(const table_facts *f, const table_block *blocks, const tombstone *tombstones) {
    uint32_t crc = bodhi_crc32c(0, &f->zero, sizeof *f - offsetof(table_facts, zero));
    crc = bodhi_crc32c(crc, blocks, (size_t)count_blocks(f->frames) * sizeof *blocks);
    return bodhi_crc32c(crc, tombstones, (size_t)f->n_tombstones * sizeof *tombstones);
}

/* --- Writing ----------------------------------------------------------------------------------------------------- */

/* Sort, and keep the later of those that are there twice: it was written because the earlier had been lost. */
static void arrange(findings *content) {
    place *places = content->places;
    size_t kept = 0;
    places_sort(places, content->n_places);
    for (size_t i = 0; i < content->n_places; i++) {
        kept -= kept > 0 && places[kept - 1].number == places[i].number;
        places[kept++] = places[i];
    }
    content->n_places = kept;
}

static void lay_out(unsigned char *out, const segment *s, const findings *content, table_facts *facts) {
    table_block *blocks = (table_block *)(void *)(out + TABLE_HEAD_BYTES);
    place *places = (place *)(void *)(out + place_at(facts->frames, facts->n_tombstones, 0));
    for (size_t i = 0; i < facts->frames; i++) {
        places[i] = content->places[i];
        places[i].segment = 0; /* each process has a number of its own for it */
    }
    for (size_t i = 0; i < count_blocks(facts->frames); i++) {
        const place *first = places + i * BLOCK_FRAMES;
        blocks[i] = (table_block){first->number, bodhi_crc32c(0, first, count_places(facts, i) * sizeof *first), 0};
    }
    if (content->n_tombstones > 0) {
        memcpy(blocks + count_blocks(facts->frames), content->tombstones, content->n_tombstones * sizeof(tombstone));
    }
    facts->crc = checksum(facts, blocks, content->tombstones);
    write_file_header(out, MAGIC_TABLE, &s->key, s->kind);
    memcpy(out + SEGMENT_HEADER_BYTES, facts, sizeof *facts);
}

bool sealed_write(int directory, const segment *s, findings *content) {
    char name[SEGMENT_NAME];
    arrange(content);
    size_t size = (size_t)sealed_bytes(content);
    unsigned char *out = content->n_places == 0 ? NULL : malloc(size);
    if (out == NULL) {
        return false;
    }
    table_facts facts = {.covered = s->covered,
                         .index_at = s->index_at,
                         .index_inode = s->index_inode,
                         .frames = content->n_places,
                         .high = content->places[content->n_places - 1].number,
                         .n_tombstones = content->n_tombstones};
    sealed_name(s, name);
    lay_out(out, s, content, &facts);
    bool written = io_write_file(directory, name, out, size, FILE_UNSYNCED);
    free(out);
    return written;
}

/* --- Opening ----------------------------------------------------------------------------------------------------- */

static bool read_all(int fd, void *out, size_t size, uint64_t at) {
    return io_read(fd, out, size, at, READ_ANY) == (ssize_t)size;
}

static bool read_facts(int fd, const segment *s, table_facts *f) {
    unsigned char head[TABLE_HEAD_BYTES];
    bool right = read_all(fd, head, sizeof head, 0) &&
                 parse_file_header(head, SEGMENT_HEADER_BYTES, MAGIC_TABLE, &s->key, s->kind) == PARSED;
    memcpy(f, head + SEGMENT_HEADER_BYTES, sizeof *f);
    return right;
}

/* Whether the facts fit a file of so many bytes, and a segment of `size`. */
static bool do_fit(const table_facts *f, uint64_t bytes, uint64_t size) {
    return f->covered <= size && f->covered >= SEGMENT_HEADER_BYTES && f->high <= INT64_MAX && f->frames > 0 &&
           f->frames <= bytes / PLACE_BYTES && f->n_tombstones <= bytes / TOMBSTONE_ENTRY_BYTES &&
           bytes == place_at(f->frames, f->n_tombstones, f->frames);
}

static bool load_blocks(sealed *t, int fd, const segment *s, uint64_t size, findings *content) {
    struct stat status;
    table_facts *f = &t->facts;
    size_t n = content->n_tombstones;
    if (bodhi_io.fstat(fd, &status) != 0 || !read_facts(fd, s, f) || !do_fit(f, (uint64_t)status.st_size, size)) {
        return false;
    }
    t->n_blocks = (size_t)count_blocks(f->frames);
    size_t bytes = t->n_blocks * sizeof *t->blocks;
    size_t dead = (size_t)f->n_tombstones * sizeof *content->tombstones;
    t->blocks = malloc(bytes);
    if (t->blocks == NULL || !ARRAY_GROW(content->tombstones, content->tombstone_capacity, n + f->n_tombstones + 1) ||
        !read_all(fd, t->blocks, bytes, TABLE_HEAD_BYTES) ||
        !read_all(fd, content->tombstones + n, dead, TABLE_HEAD_BYTES + bytes) ||
        (checksum(f, t->blocks, content->tombstones + n) != f->crc && !bodhi_bypass_checksums)) {
        return false;
    }
    content->n_tombstones += f->n_tombstones;
    return true;
}

sealed *sealed_open(int directory, const segment *s, uint32_t ordinal, uint64_t size, findings *content) {
    sealed *t = calloc(1, sizeof *t);
    if (t == NULL) {
        return NULL;
    }
    t->ordinal = ordinal;
    t->any_torn = &t->torn;
    sealed_name(s, t->name);
    int fd = io_open(directory, t->name, O_RDONLY);
    if (fd < 0 || !load_blocks(t, fd, s, size, content)) {
        sealed_close(t);
        t = NULL;
    }
    io_drop(fd);
    return t;
}

void sealed_close(sealed *t) {
    if (t != NULL) {
        free(t->blocks);
        free(t->places);
        free(t->dead);
        free(t);
    }
}

void sealed_unlink_stale(int directory, const segment *s, uint64_t size) {
    char name[SEGMENT_NAME];
    table_facts f;
    sealed_name(s, name);
    int fd = io_open(directory, name, O_RDONLY);
    if (fd >= 0 && read_facts(fd, s, &f) && f.covered > size) {
        (void)bodhi_io.unlinkat(directory, name, 0);
    }
    io_drop(fd);
}

/* --- The dead ---------------------------------------------------------------------------------------------------- */

/* The first of the dead that is not below `number`, by its place among them. */
static size_t dead_from(const sealed *t, uint64_t number) {
    size_t low;
    ARRAY_SEARCH(low, t->n_dead, i, t->dead[i] < number);
    return low;
}

bool sealed_kill(sealed *t, uint64_t number) {
    size_t at = dead_from(t, number);
    if (at < t->n_dead && t->dead[at] == number) {
        return true;
    }
    if (!ARRAY_GROW(t->dead, t->dead_capacity, t->n_dead + 1)) {
        return false;
    }
    memmove(t->dead + at + 1, t->dead + at, (t->n_dead - at) * sizeof *t->dead);
    t->dead[at] = number;
    t->n_dead++;
    t->loaded = 0; /* the place is to say so */
    return true;
}

/* --- Asking ------------------------------------------------------------------------------------------------------ */

/* Have the places of a block in memory; the file is opened if *fd is -1. Returns how many they are; 0: torn. */
static size_t load_block(sealed *t, int directory, int *fd, size_t block) {
    const size_t n = count_places(&t->facts, block);
    const size_t bytes = n * sizeof *t->places;
    if (t->loaded == block + 1) {
        return n;
    }
    t->loaded = 0;
    t->places = t->places == NULL ? malloc(BLOCK_FRAMES * sizeof *t->places) : t->places;
    *fd = *fd < 0 ? io_open(directory, t->name, O_RDONLY) : *fd;
    if (t->places == NULL || *fd < 0 ||
        !read_all(*fd, t->places, bytes, place_at(t->facts.frames, t->facts.n_tombstones, block * BLOCK_FRAMES)) ||
        (bodhi_crc32c(0, t->places, bytes) != t->blocks[block].crc && !bodhi_bypass_checksums)) {
        t->torn = *t->any_torn = true;
        return 0;
    }
    for (size_t i = 0; i < n; i++) {
        t->places[i].segment = t->ordinal;
    }
    for (size_t i = dead_from(t, t->places->number); i < t->n_dead && t->dead[i] <= t->places[n - 1].number; i++) {
        places_from(t->places, n, t->dead[i])->dead = true;
    }
    t->loaded = block + 1;
    return n;
}

/* The last block that begins at `number` or before it; the first if there is none. */
static size_t block_with(const sealed *t, uint64_t number) {
    size_t behind;
    ARRAY_SEARCH(behind, t->n_blocks, i, t->blocks[i].first <= number);
    return behind == 0 ? 0 : behind - 1;
}

const place *sealed_next(sealed *t, int directory, uint64_t number) {
    int fd = -1;
    const place *next = NULL;
    for (size_t i = block_with(t, number); next == NULL && i < t->n_blocks && number <= t->facts.high && !t->torn;
         i++) {
        size_t n = load_block(t, directory, &fd, i);
        const place *p = n == 0 ? NULL : places_from(t->places, n, number);
        next = p == NULL || p == t->places + n ? NULL : p;
    }
    io_drop(fd);
    return next;
}

const place *sealed_find(sealed *t, int directory, uint64_t number) {
    const place *next = number < t->blocks->first ? NULL : sealed_next(t, directory, number);
    return next != NULL && next->number == number ? next : NULL;
}

// NOLINTNEXTLINE(readability-non-const-parameter): marks are written there
void sealed_mark(sealed *t, int directory, const frame_selection *chosen, uint64_t *words) {
    int fd = -1;
    uint64_t high = selection_last(chosen);
    for (size_t i = block_with(t, chosen->low); !t->torn && i < t->n_blocks && t->blocks[i].first <= high; i++) {
        uint64_t first = t->blocks[i].first;
        uint64_t end = first + count_places(&t->facts, i);
        uint64_t next = i + 1 < t->n_blocks ? t->blocks[i + 1].first : t->facts.high + 1;
        if (next == end && dead_from(t, first) == dead_from(t, end)) { /* they follow one another */
            selection_set(chosen, first, end, words);
        } else {
            size_t n = load_block(t, directory, &fd, i);
            places_mark(t->places, n, chosen, words);
        }
    }
    io_drop(fd);
}
