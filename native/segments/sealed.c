/* Opening the table of a segment, and what is dead in it; see sealed.h. */
#include "segments/sealed.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/crc32c.h"
#include "base/io.h"

/* --- Opening ----------------------------------------------------------------------------------------------------- */

void sealed_name(const segment *s, char name[SEGMENT_NAME]) {
    memcpy(name, s->name, SEGMENT_NAME);
    char *dot = strrchr(name, '.');
    memcpy(dot == NULL ? name : dot, ".tab", 5);
}

static void parse_facts(const unsigned char *data, table_facts *f) {
    uint64_t *numbers[10] = {&f->stamp, &f->covered, &f->index_at, &f->index_inode, &f->frames,
                             &f->low,   &f->high,    &f->n_spans,  &f->n_stretches, &f->n_tombstones};
    f->crc = get32(data);
    f->n_pages = get32(data + 4);
    for (size_t i = 0; i < 10; i++) {
        *numbers[i] = get64(data + 8 + 8 * i);
    }
}

/* The bytes of spans, stretches and tombstones; 0: the file, of `size` bytes, has no room for so many. */
static uint64_t directory_bytes(const table_facts *f, uint64_t size) {
    uint64_t most = size / SPAN_BYTES;
    if (f->n_spans > most || f->n_stretches > most || f->n_tombstones > most ||
        (uint64_t)f->n_pages * TABLE_PAGE != size || (f->frames == 0) != (f->n_spans == 0) ||
        (f->frames == 0) != (f->n_stretches == 0)) {
        return 0;
    }
    uint64_t bytes = f->n_spans * SPAN_BYTES + f->n_stretches * STRETCH_BYTES + f->n_tombstones * TOMBSTONE_ENTRY_BYTES;
    return TABLE_HEAD_BYTES + bytes <= size ? bytes : 0;
}

uint64_t sealed_count(const sealed *t, size_t i) {
    return (i + 1 < t->n_spans ? t->spans[i + 1].rank : t->frames) - t->spans[i].rank;
}

static bool is_page(const sealed *t, uint32_t page) {
    return page > 0 && page < t->n_pages;
}

/* What the checksum cannot tell: whether the directory makes sense. */
static bool is_sound(const sealed *t) {
    uint64_t rank = 0;
    uint64_t above = 0; /* all frames so far are below it */
    for (size_t i = 0; i < t->n_spans; i++) {
        const table_span *s = &t->spans[i];
        uint64_t next = i + 1 < t->n_spans ? t->spans[i + 1].rank : t->frames;
        if (s->rank != rank || next <= rank || s->first < above || s->first > t->high) {
            return false;
        }
        uint64_t count = next - rank;
        if (s->step == 0 ? !is_page(t, s->page & ~SPAN_LIST) || count > LEAF_NUMBERS ||
                               ((s->page & SPAN_LIST) != 0 && count > LEAF_WORDS)
                         : count - 1 > (t->high - s->first) / s->step) {
            return false;
        }
        above = s->first + (s->step == 0 ? 1 : (count - 1) * s->step + 1);
        rank = next;
    }
    for (size_t i = 0; i < t->n_stretches; i++) {
        const table_stretch *s = &t->stretches[i];
        uint64_t next = i + 1 < t->n_stretches ? t->stretches[i + 1].rank : t->frames;
        uint64_t most = s->stride == 0 ? TABLE_PAYLOAD / PLACE_BYTES : (UINT32_MAX - s->offset) / s->stride + 1;
        if ((i == 0 && s->rank != 0) || next <= s->rank || next - s->rank > most ||
            (s->stride == 0 && !is_page(t, s->page))) {
            return false;
        }
    }
    return t->high <= INT64_MAX;
}

static void parse_directory(sealed *t, const unsigned char *at) {
    for (size_t i = 0; i < t->n_spans; i++, at += SPAN_BYTES) {
        t->spans[i] =
            (table_span){.first = get64(at), .rank = get64(at + 8), .step = get32(at + 16), .page = get32(at + 20)};
    }
    for (size_t i = 0; i < t->n_stretches; i++, at += STRETCH_BYTES) {
        t->stretches[i] = (table_stretch){.rank = get64(at),
                                          .offset = get32(at + 8),
                                          .stride = get32(at + 12),
                                          .length = get32(at + 16),
                                          .head = get16(at + 20),
                                          .fields = at[22],
                                          .page = get32(at + 24)};
    }
}

static bool take_tombstones(const table_facts *f, const unsigned char *at, findings *found) {
    if (f->n_tombstones == 0) {
        return true;
    }
    size_t n = found->n_tombstones + f->n_tombstones;
    tombstone *grown = realloc(found->tombstones, n * sizeof *grown);
    if (grown == NULL) {
        return false;
    }
    found->tombstones = grown;
    found->tombstone_capacity = n;
    for (; found->n_tombstones < n; at += TOMBSTONE_ENTRY_BYTES) {
        grown[found->n_tombstones++] =
            (tombstone){.segment = get64(at), .offset = get64(at + 8), .number = get64(at + 16)};
    }
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
                  .n_spans = f->n_spans,
                  .n_stretches = f->n_stretches,
                  .n_pages = f->n_pages,
                  .spans = malloc((f->n_spans + 1) * sizeof(table_span)),
                  .stretches = malloc((f->n_stretches + 1) * sizeof(table_stretch))};
    sealed_name(s, t->name);
    if (t->spans == NULL || t->stretches == NULL) {
        sealed_close(t);
        return NULL;
    }
    return t;
}

/* Make a table of the file's `size` bytes, of which the first `got` are at `data`. NULL: it is none. */
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
    parse_directory(t, data + TABLE_HEAD_BYTES);
    const unsigned char *tombstones =
        data + TABLE_HEAD_BYTES + t->n_spans * SPAN_BYTES + t->n_stretches * STRETCH_BYTES;
    if (!is_sound(t) || !take_tombstones(f, tombstones, found)) {
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
        parse_facts(page + SEGMENT_HEADER_BYTES, f);
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
    (void)io_close(fd);
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
        (void)io_close(fd);
    }
}

void sealed_close(sealed *t) {
    if (t == NULL) {
        return;
    }
    free(t->spans);
    free(t->stretches);
    free(t->dead);
    free(t->numbers.bytes);
    free(t->places.bytes);
    free(t);
}

uint64_t sealed_memory(const sealed *t) {
    return sizeof *t + t->n_spans * sizeof *t->spans + t->n_stretches * sizeof *t->stretches +
           t->dead_capacity * sizeof *t->dead + (t->numbers.bytes != NULL ? TABLE_PAGE : 0) +
           (t->places.bytes != NULL ? TABLE_PAGE : 0);
}

/* --- The dead ---------------------------------------------------------------------------------------------------- */

size_t sealed_dead_from(const sealed *t, uint64_t number) {
    size_t low = 0;
    size_t n = t->n_dead;
    while (n > 0) {
        size_t half = n / 2;
        if (t->dead[low + half] / 2 < number) {
            low += half + 1;
            n -= half + 1;
        } else {
            n = half;
        }
    }
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
    if (t->n_dead == t->dead_capacity) {
        size_t capacity = t->dead_capacity == 0 ? 16 : 2 * t->dead_capacity;
        uint64_t *grown = realloc(t->dead, capacity * sizeof *grown);
        if (grown == NULL) {
            return false;
        }
        t->dead = grown;
        t->dead_capacity = capacity;
    }
    memmove(t->dead + at + 1, t->dead + at, (t->n_dead - at) * sizeof *t->dead);
    t->dead[at] = 2 * number + passed_over;
    t->n_dead++;
    return true;
}
