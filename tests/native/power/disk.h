/* A disk under power cuts. While the library works on real files, every call that changes something is noted; from the
 * notes the disk can be made as it may lie there after the power was cut at any of them.
 *
 * What a cut may lose is what POSIX allows and journals do not promise: every sector of a file that was not synced has
 * what it had at the last sync or after any write since; the size is any that the file had since; every name in a
 * directory that was not synced (made, linked, renamed, removed) is there or not, by itself. Syncing a file does not
 * keep its name, syncing a directory not the directory's own name. After a failed sync of a file, what was not synced
 * then has any mixture of sectors for good, though the running machine sees all of it; names may still be synced. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PATH_BYTES = 128, SECTOR_BYTES = 512 };

/* --- Chance ------------------------------------------------------------------------------------------------------ */

typedef struct {
    uint64_t state;
} chance;

/* A number below `n`. */
uint32_t draw(chance *c, uint32_t n);

/* --- Images ------------------------------------------------------------------------------------------------------ */

typedef struct {
    char path[PATH_BYTES]; /* below the root */
    bool is_directory;
    unsigned char *data;
    size_t size;
} image_file;

/* What lies on a disk; a directory comes before what is in it. */
typedef struct {
    image_file *files;
    size_t n, capacity;
} image;

/* The same for two images of which nobody could tell a difference, but for the grants of room, which mean nothing
 * without a living writer. */
uint64_t image_hash(const image *im);
void image_free(image *im);

/* What of it a process sees that knows one dataset of a store alone. Its files are those of `im`: free the list. */
image image_part(const image *im, const char *store, const char *directory);

/* Make the files below `root`, which is made too. */
void image_write(const image *im, const char *root);

/* --- Notes ------------------------------------------------------------------------------------------------------- */

enum note_kind {
    NOTE_MKDIR,
    NOTE_CREATE,
    NOTE_LINK,
    NOTE_RENAME,
    NOTE_UNLINK,
    NOTE_WRITE,
    NOTE_TRUNCATE,
    NOTE_SYNC,
    NOTE_SYNC_ALL,
    NOTE_SYNC_FAILED,
    NOTE_REQUIRE, /* the test's own: these frames must be there from now on */
    NOTE_RELEASE, /* these need not */
    NOTE_WORDS    /* who does what, for whoever reads the notes */
};

typedef struct {
    enum note_kind kind;
    uint32_t node;             /* what it is about */
    uint32_t directory;        /* in which */
    char name[PATH_BYTES / 2]; /* under which name */
    char old[PATH_BYTES / 2];  /* RENAME: which it had before, in the same directory */
    uint64_t offset;           /* WRITE; TRUNCATE: the size */
    unsigned char *data;       /* WRITE */
    size_t size;               /* of it */
    uint32_t dataset;          /* REQUIRE, RELEASE: by number */
    uint64_t frames;           /* of it, as bits */
} note;

typedef struct {
    note *notes;
    size_t n, capacity;
} notes;

void notes_free(notes *n);

/* Lay the layer below the library: from now on what it does under `root`, where `from` lies, is noted. `unlinking` is
 * called before a file goes. */
void disk_attach(const char *root, const image *from, void (*unlinking)(int directory, const char *name));

/* Take the layer and the notes away. */
notes disk_detach(void);

/* Note something of the test's own, at this point of time. */
void disk_note(enum note_kind kind, uint32_t dataset, uint64_t frames);

__attribute__((format(printf, 1, 2))) void disk_say(const char *format, ...);

/* From now on there is room for so many bytes; below 0: for any number. */
void disk_set_room(int64_t bytes);

/* Names of files, which the library chooses at random, are from now on drawn from here. */
void disk_draw_names(uint64_t first);

/* The directory in which the store lies may not be read. To be said before anybody does anything. */
void disk_close_root(void);

/* The `n`th sync from now on fails, counted from 1; 0: none. */
void disk_fail_sync(int n);

/* --- Cutting the power ------------------------------------------------------------------------------------------- */

typedef struct disk disk;

disk *disk_open(const image *from);
void disk_apply(disk *d, const note *what, chance *c);
void disk_close(disk *d);

/* What of all that was not synced survives: percentages of sectors, sizes and names; EACH: other ones for every file.
 * `stale`: sectors that were never written hold what lay there before, maybe of another file. */
typedef struct {
    const char *name;
    int data, sizes, names;
    bool stale;
} survival;
enum { EACH = -1, N_EXTREMES = 5 };
extern const survival extremes[N_EXTREMES], any_survival;

image disk_cut(disk *d, const survival *what, chance *c);
