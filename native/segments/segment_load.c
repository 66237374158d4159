/* Loading segments through their indexes, and rebuilding an index that is lost or damaged; see segment.h. */
#include "segments/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/io.h"
#include "base/memory.h"
#include "segments/frame_table.h"

enum { ENTRIES_AT_ONCE = 8192 };

/* --- Names ------------------------------------------------------------------------------------------------------- */

void segment_name(segment *s, unsigned kind, uint64_t id) {
    s->key.segment = id;
    s->kind = (uint8_t)kind;
    char letter = kind == 0 ? 'n' : 'a';
    (void)snprintf(s->name, sizeof s->name, "%c-%016" PRIx64 ".seg", letter, id);
    (void)snprintf(s->index_name, sizeof s->index_name, "%c-%016" PRIx64 ".idx", letter, id);
}

bool segment_new_name(segment *s, unsigned kind) {
    uint32_t random;
    if (!io_random(&random, sizeof random)) {
        return false;
    }
    segment_name(s, kind, (uint64_t)time(NULL) << 32 | random);
    return true;
}

bool segment_from_name(segment *s, const char *name, uint64_t dataset, uint64_t generation) {
    if (strlen(name) != 22 || (name[0] != 'n' && name[0] != 'a') || name[1] != '-') {
        return false;
    }
    char *end;
    errno = 0;
    uint64_t id = strtoull(name + 2, &end, 16);
    if (errno != 0 || end != name + 18) {
        return false;
    }
    memset(s, 0, sizeof *s);
    s->fd = s->direct_fd = -1;
    s->key.dataset = dataset;
    s->key.generation = generation;
    s->covered = SEGMENT_HEADER_BYTES;
    segment_name(s, name[0] == 'n' ? 0 : 1, id);
    return strcmp(s->name, name) == 0;
}

/* --- Findings ---------------------------------------------------------------------------------------------------- */

void findings_free(findings *content) {
    free(content->places);
    free(content->tombstones);
    memset(content, 0, sizeof *content);
}

static bool add_frame(findings *content, uint32_t ordinal, const index_entry *entry) {
    if (entry->fields >> 4 > ENCODING_PACKED) {
        return true; /* of an encoding that this version cannot read: as good as absent */
    }
    if (!ARRAY_GROW(content->places, content->place_capacity, content->n_places + 1)) {
        return false;
    }
    content->places[content->n_places++] = (place){
        .number = entry->number,
        .offset = (uint32_t)(entry->offset / UNIT),
        .length = (uint32_t)(entry->length / UNIT),
        .segment = ordinal,
        .head = entry->head_units,
        .fields = entry->fields,
    };
    return true;
}

static bool add_tombstone(findings *content, const index_entry *entry) {
    if (!ARRAY_GROW(content->tombstones, content->tombstone_capacity, content->n_tombstones + 1)) {
        return false;
    }
    content->tombstones[content->n_tombstones++] =
        (tombstone){.segment = entry->length, .offset = entry->offset, .number = entry->number};
    return true;
}

/* --- Loading ----------------------------------------------------------------------------------------------------- */

/* A load in progress. */
typedef struct {
    segment *s;
    uint32_t ordinal;
    int fd;
    uint64_t size;
    uint64_t limit; /* what index entries tell of lies before it */
    findings *content;
    bool unsealed; /* by the index alone */
    bool no_memory;
} load;

static bool visit_loaded(void *context, const record_header *header) {
    load *l = context;
    index_entry entry = entry_of(header);
    bool added =
        entry.type == ENTRY_FRAME ? add_frame(l->content, l->ordinal, &entry) : add_tombstone(l->content, &entry);
    l->no_memory = l->no_memory || !added;
    return added;
}

static scan_result load_by_scan(load *l, uint64_t from, uint64_t to) {
    scan_result result = scan_segment(l->fd, &l->s->key, from, to, visit_loaded, l);
    l->content->scanned += to - from;
    l->content->lost += result.skipped;
    return result;
}

/* Take one valid entry; false if it speaks of what is not in the segment, and the index ends before it. */
static bool take_entry(load *l, const index_entry *entry) {
    segment *s = l->s;
    bool drops = entry->type == ENTRY_TOMBSTONE; /* which has no offset of its own */
    uint64_t end = drops ? s->index_covered + TOMBSTONE_BYTES : entry->offset + entry->length;
    if ((!drops && entry->offset != s->index_covered) || end > l->limit || end > (uint64_t)UINT32_MAX * UNIT) {
        return false;
    }
    s->index_covered = end;
    if (end > s->covered && entry->type != ENTRY_HOLE) {
        l->no_memory = !(drops ? add_tombstone(l->content, entry) : add_frame(l->content, l->ordinal, entry));
    }
    return !l->no_memory;
}

/* Take entries up to the first that is damaged; returns their bytes. */
static size_t take_entries(load *l, const unsigned char *data, size_t size) {
    size_t at = 0;
    index_entry entry;
    while (at + ENTRY_BYTES <= size && parse_entry(data + at, &entry, l->s->key.segment) == PARSED &&
           take_entry(l, &entry)) {
        at += ENTRY_BYTES;
    }
    return at;
}

/* Read the entries that are new, up to `end`. False if one is damaged: what follows is found without the index. */
static bool read_entries(load *l, int index, uint64_t end) {
    const size_t most = (size_t)ENTRIES_AT_ONCE * ENTRY_BYTES;
    unsigned char *buffer = malloc(most);
    if (buffer == NULL) {
        l->no_memory = true;
        return false;
    }
    uint64_t *at = &l->s->index_at;
    ssize_t got = 0;
    size_t taken = 0;
    do {
        uint64_t left = end > *at ? end - *at : 0;
        got = io_read(index, buffer, left < most ? (size_t)left : most, *at, READ_ANY);
        taken = got > 0 ? take_entries(l, buffer, (size_t)got) : 0;
        *at += taken;
    } while (taken == most);
    free(buffer);
    return got >= 0 && taken == (size_t)got / ENTRY_BYTES * ENTRY_BYTES;
}

/* Load by the index; false if it is lost or damaged in a way that the entries themselves do not show. */
static bool load_by_index(load *l, int directory) {
    segment *s = l->s;
    int index = io_open(directory, s->index_name, O_RDONLY);
    if (index < 0) {
        return false;
    }
    struct stat status;
    bool usable = bodhi_io.fstat(index, &status) == 0;
    if (usable && (s->index_at == 0 || status.st_ino != s->index_inode || (uint64_t)status.st_size < s->index_at)) {
        unsigned char header[SEGMENT_HEADER_BYTES];
        ssize_t got = io_read(index, header, sizeof header, 0, READ_ANY);
        enum parsed parsed = parse_file_header(header, got < 0 ? 0 : (size_t)got, MAGIC_INDEX, &s->key, s->kind);
        usable = parsed == PARSED;
        s->index_at = SEGMENT_HEADER_BYTES;
        s->index_covered = SEGMENT_HEADER_BYTES;
        s->index_inode = status.st_ino;
    }
    /* No entry speaks of less than a unit of the segment: whatever lies behind so many is none. */
    uint64_t most = SEGMENT_HEADER_BYTES + l->limit / UNIT * ENTRY_BYTES;
    uint64_t size = usable ? (uint64_t)status.st_size : 0;
    usable = usable && read_entries(l, index, size < most ? size : most) && size <= most;
    io_drop(index);
    return usable;
}

/* Look at the segment's header once. A damaged one does no harm: every record says where it belongs. */
static void check_header(load *l) {
    segment *s = l->s;
    unsigned char header[SEGMENT_HEADER_BYTES];
    ssize_t got = io_read(l->fd, header, sizeof header, 0, READ_ANY);
    if (got == sizeof header) {
        enum parsed parsed = parse_file_header(header, sizeof header, MAGIC_SEGMENT, &s->key, s->kind);
        s->refused = parsed == PARSED_FOREIGN;
        s->damaged_header = parsed == PARSED_DAMAGED;
        s->checked = true;
    }
}

/* Take what was sealed, so that the index need not be read but from where that ends. */
static void load_sealed(load *l, int directory) {
    segment *s = l->s;
    sealed *t = sealed_open(directory, s, l->ordinal, l->size, l->content);
    if (t == NULL || t->facts.crc == s->torn) {
        l->content->n_tombstones = 0;
        sealed_close(t);
        return;
    }
    s->sealed = t;
    s->covered = s->index_covered = t->facts.covered;
    s->index_at = t->facts.index_at;
    s->index_inode = (ino_t)t->facts.index_inode;
}

static void load_open(load *l, int directory, bool writing) {
    segment *s = l->s;
    if (!s->checked) {
        check_header(l);
    }
    if (s->refused || l->limit < SEGMENT_HEADER_BYTES) {
        return;
    }
    if (s->sealed == NULL && s->covered == SEGMENT_HEADER_BYTES && !l->unsealed) {
        load_sealed(l, directory);
    }
    bool by_index = load_by_index(l, directory);
    if (l->no_memory) {
        s->index_at = 0; /* read it again the next time */
        return;
    }
    s->covered = s->covered > s->index_covered ? s->covered : s->index_covered;
    if (by_index && l->size <= s->covered) {
        return;
    }
    bool locked = !writing && io_locked(l->fd, LOCK_WRITER);
    if (locked && by_index) {
        return; /* the writer's index entries are still to come */
    }
    s->incomplete = s->incomplete || !locked;
    if (l->size > s->covered && l->size != s->looked_at) {
        scan_result result = load_by_scan(l, s->covered, l->size);
        s->covered = result.end;
        s->looked_at = result.error == 0 && !locked ? l->size : 0;
    }
}

int segment_load(int directory, segment *s, uint32_t ordinal, unsigned how, findings *content) {
    int fd = io_open(directory, s->name, O_RDONLY);
    if (fd < 0) {
        s->gone = s->gone || errno == ENOENT;
        return errno;
    }
    load l = {.s = s, .ordinal = ordinal, .fd = fd, .content = content, .unsealed = (how & LOAD_UNSEALED) != 0};
    struct stat status;
    int error = bodhi_io.fstat(fd, &status) == 0 ? 0 : errno;
    if (error == 0) {
        l.size = (uint64_t)status.st_size;
        l.limit = (how & LOAD_BEYOND) != 0 ? INT64_MAX : l.size;
        load_open(&l, directory, (how & LOAD_WRITING) != 0);
        error = l.no_memory ? ENOMEM : 0;
    }
    io_drop(fd);
    return error;
}

/* --- Recovery ---------------------------------------------------------------------------------------------------- */

/* An index being rebuilt. */
typedef struct {
    uint64_t segment;
    uint64_t covered;     /* of the segment, by the entries so far */
    unsigned char *bytes; /* of the header and the entries */
    size_t size, capacity;
} rebuild;

static bool rebuild_entry(rebuild *r, const index_entry *entry) {
    if (!ARRAY_GROW(r->bytes, r->capacity, r->size + ENTRY_BYTES)) {
        return false;
    }
    write_entry(r->bytes + r->size, entry, r->segment);
    r->size += ENTRY_BYTES;
    return true;
}

static bool visit_rebuilt(void *context, const record_header *header) {
    rebuild *r = context;
    const index_entry hole = {.type = ENTRY_HOLE, .offset = r->covered, .length = header->offset - r->covered};
    const index_entry entry = entry_of(header);
    r->covered = header->offset + header->length;
    return (hole.length == 0 || rebuild_entry(r, &hole)) && rebuild_entry(r, &entry);
}

/* Write the index of what the segment, of `size` bytes, is found to hold. Returns an errno. */
static int rebuild_index(rebuild *r, int directory, const segment *s, int fd, uint64_t size) {
    if (!ARRAY_GROW(r->bytes, r->capacity, SEGMENT_HEADER_BYTES)) {
        return ENOMEM;
    }
    write_file_header(r->bytes, MAGIC_INDEX, &s->key, s->kind);
    r->size = SEGMENT_HEADER_BYTES;
    scan_result result = scan_segment(fd, &s->key, SEGMENT_HEADER_BYTES, size, visit_rebuilt, r);
    if (result.error != 0) {
        return result.error;
    }
    bool done = (r->covered == size || io_truncate(fd, r->covered)) &&
                io_write_file(directory, s->index_name, r->bytes, r->size, FILE_UNSYNCED);
    return done ? 0 : errno;
}

int segment_recover(int directory, segment *s, int fd) {
    struct stat status;
    if (s->refused || s->frozen) {
        return EPROTONOSUPPORT;
    }
    if (bodhi_io.fstat(fd, &status) != 0) {
        return errno;
    }
    rebuild r = {.segment = s->key.segment, .covered = SEGMENT_HEADER_BYTES};
    int error = rebuild_index(&r, directory, s, fd, (uint64_t)status.st_size);
    free(r.bytes);
    if (error == 0) {
        s->incomplete = false;
        s->index_at = 0;
        s->looked_at = 0;
    }
    return error;
}
