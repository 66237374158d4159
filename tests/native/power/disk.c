/* What may lie on a disk after a power cut; see disk.h. */
#include "disk.h"

#include "../check.h"
#include "base/crc32c.h"
#include "base/memory.h"

uint32_t draw(chance *c, uint32_t n) {
    c->state += UINT64_C(0x9E3779B97F4A7C15);
    uint64_t x = c->state;
    x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
    return (uint32_t)((x ^ x >> 31) % n);
}

static bool happens(chance *c, int percent) {
    return percent >= 100 || (percent > 0 && draw(c, 100) < (uint32_t)percent);
}

/* --- Images ------------------------------------------------------------------------------------------------------ */

uint64_t image_hash(const image *im) {
    uint32_t low = 1;
    uint32_t high = 2;
    for (size_t i = 0; i < im->n; i++) {
        const image_file *file = &im->files[i];
        const char *slash = strrchr(file->path, '/');
        size_t content = slash != NULL && strcmp(slash, "/room") == 0 ? 0 : file->size;
        low = bodhi_crc32c(low, file->path, strlen(file->path) + 1);
        low = content > 0 ? bodhi_crc32c(low, file->data, content) : low;
        high = bodhi_crc32c(high ^ low, &content, sizeof content);
    }
    return (uint64_t)high << 32 | low;
}

void image_free(image *im) {
    for (size_t i = 0; i < im->n; i++) {
        free(im->files[i].data);
    }
    free(im->files);
    *im = (image){0};
}

image image_part(const image *im, const char *store, const char *directory) {
    image part = {.files = malloc((im->n + 1) * sizeof *im->files)};
    CHECK(part.files != NULL);
    size_t n = strlen(store);
    for (size_t i = 0; i < im->n; i++) {
        const char *path = im->files[i].path;
        const char *below = path + n + 1;
        if (strncmp(path, store, n) == 0 && (path[n] == '\0' || strncmp(below, directory, strlen(directory)) == 0 ||
                                             (strchr(below, '/') == NULL && !im->files[i].is_directory))) {
            part.files[part.n++] = im->files[i];
        }
    }
    return part;
}

void image_write(const image *im, const char *root) {
    CHECK(mkdir(root, 0700) == 0);
    for (size_t i = 0; i < im->n; i++) {
        char path[2 * PATH_BYTES];
        const image_file *file = &im->files[i];
        (void)snprintf(path, sizeof path, "%s/%s", root, file->path);
        if (file->is_directory) {
            CHECK(mkdir(path, 0700) == 0);
            continue;
        }
        int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        CHECK(fd >= 0 && write(fd, file->data, file->size) == (ssize_t)file->size);
        (void)close(fd);
    }
}

void notes_free(notes *n) {
    for (size_t i = 0; i < n->n; i++) {
        free(n->notes[i].data);
    }
    free(n->notes);
    *n = (notes){0};
}

/* --- The disk ---------------------------------------------------------------------------------------------------- */

typedef struct {
    unsigned char *data; /* zeros up to the capacity */
    size_t size, capacity;
} content;

typedef struct {
    char name[PATH_BYTES / 2];
    uint32_t node;
} entry;

typedef struct {
    bool is_directory;
    content durable; /* of a file: on the disk */
    content base;    /* seen at the last sync; another than `durable` if that failed */
    entry *entries;  /* of a directory: on the disk */
    size_t n_entries;
    const note **unsynced;
    size_t n_unsynced, capacity;
    content cut; /* of the image that is being made */
    bool is_cut;
} node;

struct disk {
    node *nodes;
    size_t n, capacity;
    const note *written; /* the last one, for what is stale */
};

static void reserve(content *c, size_t size) {
    if (size > c->capacity) {
        size_t capacity = (size + SECTOR_BYTES - 1) / SECTOR_BYTES * SECTOR_BYTES;
        c->data = realloc(c->data, capacity); // NOLINT(clang-analyzer-optin.portability.UnixAPI): never 0
        CHECK(c->data != NULL);
        memset(c->data + c->capacity, 0, capacity - c->capacity);
        c->capacity = capacity;
    }
}

static void copy(content *to, const content *from) {
    if (to->size > 0) {
        memset(to->data, 0, to->size);
    }
    reserve(to, from->size);
    if (from->size > 0) {
        memcpy(to->data, from->data, from->size);
    }
    to->size = from->size;
}

/* Do to the content what the note says. */
static void change(content *c, const note *what) {
    if (what->kind == NOTE_WRITE) {
        reserve(c, what->offset + what->size);
        if (what->size > 0 && c->data != NULL) {
            memcpy(c->data + what->offset, what->data, what->size);
        }
        c->size = c->size > what->offset + what->size ? c->size : what->offset + what->size;
    } else {
        reserve(c, what->offset);
        if (what->offset < c->size) {
            memset(c->data + what->offset, 0, c->size - what->offset);
        }
        c->size = what->offset;
    }
}

/* Choose for the file what is on the disk: of every sector and of the size, one state since the last sync. */
static void choose_content(const disk *d, const node *n, const survival *what, chance *c, content *out) {
    content seen = {0};
    copy(&seen, &n->base);
    copy(out, &n->durable);
    size_t size = out->size;
    for (size_t i = 0; i < n->n_unsynced; i++) {
        size_t before = seen.size;
        size_t from = n->unsynced[i]->offset / SECTOR_BYTES;
        change(&seen, n->unsynced[i]);
        size_t until = n->unsynced[i]->kind == NOTE_WRITE ? n->unsynced[i]->offset + n->unsynced[i]->size : before;
        reserve(out, seen.capacity);
        for (size_t sector = from; sector * SECTOR_BYTES < until; sector++) {
            if (sector * SECTOR_BYTES < seen.capacity && happens(c, what->data)) {
                memcpy(out->data + sector * SECTOR_BYTES, seen.data + sector * SECTOR_BYTES, SECTOR_BYTES);
            } else if (what->stale && sector * SECTOR_BYTES >= n->durable.size && d->written != NULL &&
                       sector * SECTOR_BYTES < seen.capacity && happens(c, 30)) {
                size_t bytes = d->written->size < SECTOR_BYTES ? d->written->size : SECTOR_BYTES;
                memcpy(out->data + sector * SECTOR_BYTES, d->written->data, bytes);
            }
        }
        size = happens(c, what->sizes) ? seen.size : size;
    }
    reserve(out, size);
    out->size = size;
    free(seen.data);
}

static int any_percentage(chance *c) {
    static const int percentages[] = {0, 15, 50, 85, 100};
    return percentages[draw(c, 5)];
}

static survival settle(const survival *what, chance *c) {
    survival settled = *what;
    settled.data = what->data == EACH ? any_percentage(c) : what->data;
    settled.sizes = what->sizes == EACH ? any_percentage(c) : what->sizes;
    settled.names = what->names == EACH ? any_percentage(c) : what->names;
    return settled;
}

/* --- Names ------------------------------------------------------------------------------------------------------- */

typedef struct {
    entry *list;
    size_t n;
} names;

static void remove_name(names *at, const char *name) {
    for (size_t i = 0; i < at->n; i++) {
        if (strcmp(at->list[i].name, name) == 0) {
            at->list[i] = at->list[--at->n];
            return;
        }
    }
}

/* The list has room for it. */
static void set_name(names *at, const char *name, uint32_t to) {
    remove_name(at, name);
    entry *e = &at->list[at->n++];
    (void)snprintf(e->name, sizeof e->name, "%.63s", name);
    e->node = to;
}

static void change_names(names *at, const note *what) {
    if (what->kind == NOTE_UNLINK) {
        remove_name(at, what->name);
        return;
    }
    if (what->kind == NOTE_RENAME) {
        remove_name(at, what->old);
    }
    set_name(at, what->name, what->node);
}

/* The names of a directory that survive. */
static names choose_names(const node *n, const survival *what, chance *c) {
    names at = {.list = calloc(n->n_entries + n->n_unsynced + 1, sizeof *at.list), .n = n->n_entries};
    CHECK(at.list != NULL);
    if (at.n > 0) {
        memcpy(at.list, n->entries, at.n * sizeof *at.list);
    }
    for (size_t i = 0; i < n->n_unsynced; i++) {
        if (happens(c, what->names)) {
            change_names(&at, n->unsynced[i]);
        }
    }
    return at;
}

/* --- Applying notes ---------------------------------------------------------------------------------------------- */

static node *node_at(disk *d, uint32_t number) {
    if (number >= d->capacity) {
        size_t capacity = (number + 1) * (size_t)2;
        d->nodes = realloc(d->nodes, capacity * sizeof *d->nodes);
        CHECK(d->nodes != NULL);
        memset(d->nodes + d->capacity, 0, (capacity - d->capacity) * sizeof *d->nodes);
        d->capacity = capacity;
    }
    d->n = d->n > number ? d->n : number + 1;
    return &d->nodes[number];
}

static void wait_for_sync(node *n, const note *what) {
    CHECK(ARRAY_GROW(n->unsynced, n->capacity, n->n_unsynced + 1));
    n->unsynced[n->n_unsynced++] = what;
}

static void sync_node(const disk *d, node *n, bool failed, chance *c) {
    survival part = settle(failed ? &any_survival : &extremes[1], c);
    if (n->is_directory && failed) {
        return;
    }
    if (n->is_directory) {
        names at = choose_names(n, &part, c);
        free(n->entries);
        n->entries = at.list;
        n->n_entries = at.n;
    } else {
        content chosen = {0};
        choose_content(d, n, &part, c, &chosen);
        for (size_t i = 0; i < n->n_unsynced; i++) {
            change(&n->base, n->unsynced[i]);
        }
        copy(&n->durable, failed ? &chosen : &n->base);
        free(chosen.data);
    }
    n->n_unsynced = 0;
}

void disk_apply(disk *d, const note *what, chance *c) {
    switch (what->kind) {
    case NOTE_MKDIR:
    case NOTE_CREATE:
        node_at(d, what->node)->is_directory = what->kind == NOTE_MKDIR;
        wait_for_sync(node_at(d, what->directory), what);
        break;
    case NOTE_LINK:
    case NOTE_RENAME:
    case NOTE_UNLINK:
        wait_for_sync(node_at(d, what->directory), what);
        break;
    case NOTE_WRITE:
        d->written = what->size >= SECTOR_BYTES ? what : d->written;
        wait_for_sync(node_at(d, what->node), what);
        break;
    case NOTE_TRUNCATE:
        wait_for_sync(node_at(d, what->node), what);
        break;
    case NOTE_SYNC_ALL:
        for (size_t i = 0; i < d->n; i++) {
            sync_node(d, &d->nodes[i], false, c);
        }
        break;
    case NOTE_SYNC:
    case NOTE_SYNC_FAILED:
        sync_node(d, node_at(d, what->node), what->kind == NOTE_SYNC_FAILED, c);
        break;
    default:
        break;
    }
}

/* The number of the directory that `path` lies in, and where its last part begins. */
static uint32_t parent_in(const image *im, const char *path, const char **name) {
    const char *slash = strrchr(path, '/');
    *name = slash == NULL ? path : slash + 1;
    for (size_t i = 0; slash != NULL && i < im->n; i++) {
        if (strlen(im->files[i].path) == (size_t)(slash - path) &&
            strncmp(im->files[i].path, path, (size_t)(slash - path)) == 0) {
            return (uint32_t)i + 1;
        }
    }
    return 0;
}

disk *disk_open(const image *from) {
    disk *d = calloc(1, sizeof *d);
    CHECK(d != NULL);
    node_at(d, 0)->is_directory = true;
    for (size_t i = 0; i < from->n; i++) {
        const image_file *file = &from->files[i];
        const char *name;
        uint32_t directory = parent_in(from, file->path, &name);
        node *n = node_at(d, (uint32_t)i + 1);
        content given = {.data = file->data, .size = file->size};
        n->is_directory = file->is_directory;
        copy(&n->durable, &given);
        copy(&n->base, &given);
        node *in = &d->nodes[directory];
        names at = {.list = realloc(in->entries, (in->n_entries + 1) * sizeof *in->entries), .n = in->n_entries};
        CHECK(at.list != NULL);
        set_name(&at, name, (uint32_t)i + 1);
        in->entries = at.list;
        in->n_entries = at.n;
    }
    return d;
}

void disk_close(disk *d) {
    for (size_t i = 0; i < d->n; i++) {
        free(d->nodes[i].durable.data);
        free(d->nodes[i].base.data);
        free(d->nodes[i].cut.data);
        free(d->nodes[i].entries);
        free((void *)d->nodes[i].unsynced);
    }
    free(d->nodes);
    free(d);
}

/* --- Cutting ----------------------------------------------------------------------------------------------------- */

const survival extremes[N_EXTREMES] = {
    {"nothing", 0, 0, 0, false},           {"everything", 100, 100, 100, false},
    {"names alone", 0, 0, 100, false},     {"names and sizes", 0, 100, 100, true},
    {"all but names", 100, 100, 0, false},
};
const survival any_survival = {"anything", EACH, EACH, EACH, true};

static void add_file(image *im, const char *path, bool is_directory, const content *c) {
    CHECK(ARRAY_GROW(im->files, im->capacity, im->n + 1));
    image_file *file = &im->files[im->n++];
    *file = (image_file){.is_directory = is_directory, .size = c->size};
    (void)snprintf(file->path, sizeof file->path, "%s", path);
    if (c->size > 0) {
        file->data = malloc(c->size);
        CHECK(file->data != NULL);
        memcpy(file->data, c->data, c->size);
    }
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const entry *)a)->name, ((const entry *)b)->name);
}

static void cut_directory(disk *d, const node *directory, const char *path, const survival *what, chance *c,
                          image *im) {
    survival of_names = settle(what, c);
    names at = choose_names(directory, &of_names, c);
    if (at.n > 0) {
        qsort(at.list, at.n, sizeof *at.list, by_name);
    }
    for (size_t i = 0; i < at.n; i++) {
        char below[PATH_BYTES];
        node *n = &d->nodes[at.list[i].node];
        int length = snprintf(below, sizeof below, "%s%s%s", path, *path == '\0' ? "" : "/", at.list[i].name);
        CHECK(length < PATH_BYTES);
        if (!n->is_directory && !n->is_cut) { /* once, however many names it has */
            survival of_data = settle(what, c);
            choose_content(d, n, &of_data, c, &n->cut);
            n->is_cut = true;
        }
        add_file(im, below, n->is_directory, &n->cut);
        if (n->is_directory) {
            cut_directory(d, n, below, what, c, im); // NOLINT(misc-no-recursion): three levels
        }
    }
    free(at.list);
}

image disk_cut(disk *d, const survival *what, chance *c) {
    image im = {0};
    for (size_t i = 0; i < d->n; i++) {
        d->nodes[i].is_cut = false;
    }
    cut_directory(d, &d->nodes[0], "", what, c, &im);
    return im;
}
