/* Opening the table of a segment, and what is dead in it; see frame_table.h. */
#include "segments/frame_table.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/io.h"
#include "base/memory.h"

/* --- Opening ----------------------------------------------------------------------------------------------------- */

void sealed_name(const segment *s, char name[SEGMENT_NAME]) {
    memcpy(name, s->name, SEGMENT_NAME);
    char *dot = strrchr(name, '.');
    memcpy(dot == NULL ? name : dot, ".tab", 5);
}

/* The bytes of runs and tombstones; 0: the file, of `size` bytes, has no room for so many. */
static uint64_t directory_bytes(const table_facts *f, uint64_t size) {
    uint64_t most = size / TOMBSTONE_ENTRY_BYTES;
    if (f->n_runs > most || f->n_tombstones > most || (uint64_t)f->n_pages * TABLE_PAGE != size ||
        (f->frames == 0) != (f->n_runs == 0)) {
        return 0;
    }
    uint64_t bytes = f->n_runs * RUN_BYTES + f->n_tombstones * TOMBSTONE_ENTRY_BYTES;
    return TABLE_HEAD_BYTES + bytes <= size ? bytes : 0;
}

static bool run_is_sound(const sealed *t, const table_run *r) {
    uint64_t others = (uint64_t)r->count - 1;
    bool paged = r->offset > 0 && r->offset < t->n_pages && r->count <= PLACES_IN_PAGE;
    return r->count > 0 && r->first <= t->high && (r->step == 0 || others <= (t->high - r->first) / r->step) &&
           (r->stride == 0 ? paged : r->step > 0 && others <= (UINT32_MAX - r->offset) / r->stride);
}

/* What the checksum cannot tell: whether the directory makes sense. */
static bool is_sound(const sealed *t) {
    uint64_t frames = 0;
    uint64_t above = 0; /* all frames so far are below it */
    for (size_t i = 0; i < t->n_runs; i++) {
        const table_run *r = &t->runs[i];
        if (!run_is_sound(t, r) || r->first < above) {
            return false;
        }
        frames += r->count;
        above = r->first + (uint64_t)(r->count - 1) * r->step + 1;
    }
    return frames == t->frames && t->high <= INT64_MAX;
}

static bool take_tombstones(const table_facts *f, const unsigned char *at, findings *found) {
    size_t n = found->n_tombstones + f->n_tombstones;
    if (!ARRAY_FIT(found->tombstones, found->tombstone_capacity, n)) {
        return false;
    }
    if (f->n_tombstones > 0) {
        memcpy(found->tombstones + found->n_tombstones, at, f->n_tombstones * sizeof *found->tombstones);
    }
    found->n_tombstones = n;
    return true;
}

static sealed *new_sealed(const segment *s, uint32_t ordinal, const table_facts *f) {
    sealed *t = calloc(1, sizeof *t);
    if (t == NULL) {
        return NULL;
    }
    *t = (sealed){.key = s->key,
                  .ordinal = ordinal,
                  .stamp = f->stamp,
                  .covered = f->covered,
                  .index_at = f->index_at,
                  .index_inode = f->index_inode,
                  .frames = f->frames,
                  .low = f->low,
                  .high = f->high,
                  .n_runs = f->n_runs,
                  .n_pages = f->n_pages,
                  .runs = malloc((f->n_runs + 1) * sizeof(table_run))};
    sealed_name(s, t->name);
    if (t->runs == NULL) {
        sealed_close(t);
        return NULL;
    }
    return t;
}

/* Make a table of the beginning of its file. NULL: it is none. */
static sealed *parse(const segment *s, uint32_t ordinal, const unsigned char *data, const table_facts *f,
                     uint64_t directory, findings *found) {
    const unsigned char *checked = data + SEGMENT_HEADER_BYTES + 4;
    if (bodhi_crc32c(0, checked, TABLE_FACTS_BYTES - 4 + directory) != f->crc && !bodhi_bypass_checksums) {
        return NULL;
    }
    sealed *t = new_sealed(s, ordinal, f);
    if (t == NULL) {
        return NULL;
    }
    memcpy(t->runs, data + TABLE_HEAD_BYTES, t->n_runs * sizeof *t->runs);
    if (!is_sound(t) || !take_tombstones(f, data + TABLE_HEAD_BYTES + t->n_runs * RUN_BYTES, found)) {
        sealed_close(t);
        return NULL;
    }
    return t;
}

static bool read_facts(int fd, const segment *s, unsigned char page[TABLE_PAGE], table_facts *f) {
    unsigned version;
    bool right = io_read(fd, page, TABLE_PAGE, 0, READ_ANY) == TABLE_PAGE &&
                 parse_file_header(page, SEGMENT_HEADER_BYTES, MAGIC_TABLE, &s->key, s->kind, &version) == PARSED;
    if (right) {
        memcpy(f, page + SEGMENT_HEADER_BYTES, sizeof *f);
    }
    return right;
}

static sealed *open_file(int fd, const segment *s, uint32_t ordinal, uint64_t size, findings *found) {
    unsigned char page[TABLE_PAGE];
    table_facts f;
    struct stat status;
    if (bodhi_io.fstat(fd, &status) != 0 || !read_facts(fd, s, page, &f)) {
        return NULL;
    }
    uint64_t directory = directory_bytes(&f, (uint64_t)status.st_size);
    if (f.covered > size || f.covered < SEGMENT_HEADER_BYTES || (directory == 0 && f.frames > 0)) {
        return NULL;
    }
    if (TABLE_HEAD_BYTES + directory <= sizeof page) {
        return parse(s, ordinal, page, &f, directory, found);
    }
    size_t wanted = TABLE_HEAD_BYTES + (size_t)directory;
    unsigned char *data = malloc(wanted);
    sealed *t = data != NULL && io_read(fd, data, wanted, 0, READ_ANY) == (ssize_t)wanted &&
                        memcmp(data, page, TABLE_HEAD_BYTES) == 0
                    ? parse(s, ordinal, data, &f, directory, found)
                    : NULL;
    free(data);
    return t;
}

sealed *sealed_open(int directory, const segment *s, uint32_t ordinal, uint64_t size, findings *found) {
    char name[SEGMENT_NAME];
    sealed_name(s, name);
    int fd = io_open(directory, name, O_RDONLY);
    if (fd < 0) {
        return NULL;
    }
    sealed *t = open_file(fd, s, ordinal, size, found);
    io_drop(fd);
    return t;
}

void sealed_unlink_stale(int directory, const segment *s, uint64_t size) {
    unsigned char page[TABLE_PAGE];
    char name[SEGMENT_NAME];
    table_facts f;
    sealed_name(s, name);
    int fd = io_open(directory, name, O_RDONLY);
    if (fd >= 0) {
        if (read_facts(fd, s, page, &f) && f.covered > size) {
            (void)bodhi_io.unlinkat(directory, name, 0);
        }
        io_drop(fd);
    }
}

void sealed_close(sealed *t) {
    if (t == NULL) {
        return;
    }
    free(t->runs);
    free(t->dead);
    free(t->page_bytes);
    free(t);
}

uint64_t sealed_memory(const sealed *t) {
    return sizeof *t + t->n_runs * sizeof *t->runs + t->dead_capacity * sizeof *t->dead +
           (t->page_bytes != NULL ? TABLE_PAGE : 0);
}

/* --- The dead ---------------------------------------------------------------------------------------------------- */

size_t sealed_dead_from(const sealed *t, uint64_t number) {
    size_t low;
    ARRAY_SEARCH(low, t->n_dead, i, t->dead[i] / 2 < number);
    return low;
}

bool sealed_is_dead(const sealed *t, uint64_t number) {
    size_t at = sealed_dead_from(t, number);
    return at < t->n_dead && t->dead[at] / 2 == number;
}

bool sealed_kill(sealed *t, uint64_t number, bool passed_over) {
    size_t at = sealed_dead_from(t, number);
    if (at < t->n_dead && t->dead[at] / 2 == number) {
        return true;
    }
    if (!ARRAY_GROW(t->dead, t->dead_capacity, t->n_dead + 1)) {
        return false;
    }
    memmove(t->dead + at + 1, t->dead + at, (t->n_dead - at) * sizeof *t->dead);
    t->dead[at] = 2 * number + passed_over;
    t->n_dead++;
    return true;
}
