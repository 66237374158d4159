/* Power cuts: random histories of all who use a store, cut at every call that changed something, in several ways each.
 * Whatever survives, the stores open and take frames, no frame has a wrong byte, none that was acknowledged durable is
 * missing, and a simulation's dataset is known as its own.
 *
 * usage: test_power [HISTORIES [FIRST [PROCESSES]]]; the figures are printed, and with a failure the history's
 * number, with which alone it can be run again. */
#include <sys/mman.h>
#include <time.h>

#include "../check.h"
#include "../scratch.h"
#include "actors.h"
#include "base/io.h"
#include "base/memory.h"
#include "disk.h"
#include "frames.h"
#include "store/dataset.h"

enum {
    LIVES = 3,
    ACTIONS = 14,
    RANDOM_CUTS = 2,
    N_ALWAYS = 2 /* of the extremes */,
    LARGE_EVERY = 20,
    ALL_PROMISE = 20 /* histories in which everybody does something */
};

char doing[256];

/* Of all processes together. */
typedef struct {
    atomic_uint_least64_t histories, calls, cuts, images, promises[PROMISERS];
} figures;
static figures *sums;

static bool traced; /* POWER_TRACE is in the environment */
static char scratch[64], life_root[PATH_BYTES], image_root[PATH_BYTES], socket_path[PATH_BYTES];

/* Open the store as any process would, and read. */
static void look(uint32_t dataset, uint64_t required, int flags) {
    bodhi_store *store;
    bodhi_dataset *opened;
    CHECK(known_open_store(image_root, dataset, flags, &store) == BODHI_OK);
    CHECK(known_open(store, dataset, flags, &opened) == BODHI_OK);
    uint64_t there = frames_read(opened, dataset, (UINT64_C(1) << LATE_FRAMES) - 1);
    char author[64];
    int fd = openat(opened->fd, "x-author", O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? 0 : read(fd, author, sizeof author);
    CHECK(got == 0 || ((size_t)got == strlen(identity) && memcmp(author, identity, (size_t)got) == 0));
    there |= got > 0 ? AUTHOR_KNOWN : 0;
    io_drop(fd);
    uint64_t missing = required & ~there;
    if (missing != 0) {
        (void)fprintf(stderr, "frames %#llx of %s are lost\n", (unsigned long long)missing, known[dataset].name);
    }
    CHECK(missing == 0);
    bodhi_dataset_close(opened);
    bodhi_close(store);
}

/* Write new frames; returns those that were acknowledged. */
static uint64_t write_late(uint32_t dataset, chance *c) {
    bodhi_store *store;
    bodhi_dataset *opened;
    bodhi_writer *writer;
    uint64_t written = 0;
    bodhi_write_options options = {.segment_bytes = 40000};
    CHECK(known_open_store(image_root, dataset, BODHI_CREATE, &store) == BODHI_OK);
    CHECK(known_open(store, dataset, BODHI_CREATE, &opened) == BODHI_OK);
    CHECK(bodhi_writer_open(opened, (int)draw(c, 2), &options, &writer) == BODHI_OK);
    for (int64_t number = FRAMES - 3; number < FRAMES + 2; number++) {
        bodhi_frame frame = frame_of(dataset, number);
        int status = bodhi_append(writer, &frame);
        CHECK(status == BODHI_OK || (status == BODHI_EXISTS && number < FRAMES));
        written |= status == BODHI_OK ? UINT64_C(1) << number : 0;
    }
    CHECK(bodhi_flush(writer, 1) == BODHI_OK);
    CHECK(bodhi_writer_close(writer) == BODHI_OK);
    bodhi_dataset_close(opened);
    bodhi_close(store);
    return written;
}

static void check_image(const image *im, uint32_t dataset, uint64_t required, chance *c) {
    static const int ways[] = {BODHI_READ_ONLY, 0, BODHI_CREATE, BODHI_CREATE};
    remove_all(image_root);
    image_write(im, image_root);
    if (traced) { /* what a failure then began with */
        char before[2 * PATH_BYTES];
        (void)snprintf(before, sizeof before, "%s-before", image_root);
        remove_all(before);
        image_write(im, before);
    }
    look(dataset, required, required == 0 ? BODHI_CREATE : ways[draw(c, 4)]);
    if (draw(c, 2) == 0) {
        look(dataset, required | write_late(dataset, c), 0);
    }
    (void)atomic_fetch_add(&sums->images, 1);
}

typedef struct {
    uint64_t *hashes;
    size_t n, capacity;
} seen;

/* Whether it is new. */
static bool remember(seen *s, uint64_t hash) {
    for (size_t i = 0; i < s->n; i++) {
        if (s->hashes[i] == hash) {
            return false;
        }
    }
    CHECK(ARRAY_GROW(s->hashes, s->capacity, s->n + 1));
    s->hashes[s->n++] = hash;
    return true;
}

/* A write alone promises nothing: of those, fewer ways are looked at. */
static int ways_after(const note *what) {
    bool promises_nothing = what->kind <= NOTE_CREATE || what->kind == NOTE_WRITE || what->kind == NOTE_TRUNCATE;
    return promises_nothing ? N_ALWAYS + 1 : N_EXTREMES + RANDOM_CUTS;
}

static void cut_here(disk *d, const uint64_t *required, seen *s, size_t at, int ways, chance *c) {
    char before[sizeof doing];
    memcpy(before, doing, sizeof before);
    for (int way = 0; way < ways; way++) {
        bool random = way >= N_EXTREMES || (ways < N_EXTREMES && way >= N_ALWAYS);
        const survival *what = random ? &any_survival : &extremes[way];
        image im = disk_cut(d, what, c);
        (void)atomic_fetch_add(&sums->cuts, 1);
        DOING("%.150s, cut after note %zu, %s survives", before, at, what->name);
        for (uint32_t dataset = 0; dataset < DATASETS; dataset++) {
            char directory[48];
            known_directory(dataset, directory, sizeof directory);
            image part = image_part(&im, known[dataset].store, directory);
            uint64_t hash = image_hash(&part) ^ required[dataset] * UINT64_C(0x9E3779B97F4A7C15);
            if (remember(s, hash * DATASETS + dataset)) {
                check_image(&part, dataset, required[dataset], c);
            }
            free(part.files);
        }
        image_free(&im);
    }
    memcpy(doing, before, sizeof before);
}

/* What happened, call by call. */
static void trace(size_t at, const note *what) {
    static const char *const kinds[] = {"mkdir",   "create",   "link", "rename",   "unlink",
                                        "write",   "truncate", "sync", "sync all", "sync that fails",
                                        "require", "release",  "words"};
    (void)printf("%s, note %zu: %s node %u, in %u %s %s, at %llu %zu, dataset %u frames %#llx\n", doing, at,
                 kinds[what->kind], what->node, what->directory, what->name, what->old,
                 (unsigned long long)what->offset, what->size, what->dataset, (unsigned long long)what->frames);
}

/* Cut the power at every point of a life. Returns what survives for the next one. */
static image cut_everywhere(const image *from, const notes *n, uint64_t *required, chance *c) {
    disk *d = disk_open(from);
    seen s = {0};
    for (size_t i = 0; i < n->n; i++) {
        const note *what = &n->notes[i];
        if (traced) {
            trace(i, what);
        }
        disk_apply(d, what, c);
        if (what->kind == NOTE_REQUIRE) {
            required[what->dataset] |= what->frames;
        } else if (what->kind == NOTE_RELEASE) {
            required[what->dataset] &= ~what->frames;
        }
        if (what->kind != NOTE_WORDS) {
            cut_here(d, required, &s, i, ways_after(what), c);
        }
    }
    image last = disk_cut(d, draw(c, 3) == 0 ? &extremes[1] : &any_survival, c);
    (void)atomic_fetch_add(&sums->calls, n->n);
    disk_close(d);
    free(s.hashes);
    return last;
}

static void live_history(uint64_t number) {
    chance c = {.state = number * UINT64_C(1000003)};
    image from = {0};
    uint64_t required[DATASETS] = {0};
    int large = number % LARGE_EVERY == 7;
    frames_make(large);
    disk_draw_names(number << 40);
    for (int life = 0; life < (large ? 1 : LIVES); life++) {
        DOING("history %llu, life %d", (unsigned long long)number, life);
        remove_all(life_root);
        image_write(&from, life_root);
        disk_attach(life_root, &from, actors_unlinking);
        actors_begin(life_root, socket_path, &c, large);
        for (uint32_t n = large ? 2 : 4 + draw(&c, ACTIONS); n > 0; n--) {
            actors_act();
        }
        actors_end();
        notes n = disk_detach();
        chance cuts = {.state = ~c.state}; /* its own, as threads do not always make the same calls */
        image next = cut_everywhere(&from, &n, required, &cuts);
        notes_free(&n);
        image_free(&from);
        from = next;
    }
    image_free(&from);
    (void)atomic_fetch_add(&sums->histories, 1);
}

static void run_part(uint64_t first, uint64_t histories, uint64_t part, uint64_t parts) {
    CHECK(make_scratch(scratch, sizeof scratch, access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp"));
    (void)snprintf(life_root, sizeof life_root, "%s/life", scratch);
    (void)snprintf(image_root, sizeof image_root, "%s/image", scratch);
    (void)snprintf(socket_path, sizeof socket_path, "%s/socket", scratch);
    for (uint64_t i = part; i < histories; i += parts) {
        live_history(first + i);
    }
    remove_all(scratch);
    for (int who = 0; who < PROMISERS; who++) {
        (void)atomic_fetch_add(&sums->promises[who], promises[who]);
    }
}

int main(int argc, char **argv) {
    uint64_t histories = argc > 1 ? strtoull(argv[1], NULL, 10) : 20;
    uint64_t first = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    uint64_t parts = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;
    traced = getenv("POWER_TRACE") != NULL; // NOLINT(concurrency-mt-unsafe): no other thread is there
    (void)setvbuf(stdout, NULL, _IOLBF, 0); /* what was told before a failure is not lost */
    sums = mmap(NULL, sizeof *sums, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(sums != MAP_FAILED);
    time_t started = time(NULL);
    for (uint64_t part = 1; part < parts; part++) {
        if (fork() == 0) {
            run_part(first, histories, part, parts);
            _exit(0);
        }
    }
    run_part(first, histories, 0, parts);
    int code = 0;
    int status;
    while (wait(&status) > 0) {
        code = status == 0 ? code : 1;
    }
    (void)printf("%llu histories: power cut after each of %llu calls, %llu disks, datasets in %llu states; %ld s\n",
                 (unsigned long long)sums->histories, (unsigned long long)sums->calls, (unsigned long long)sums->cuts,
                 (unsigned long long)sums->images, (long)(time(NULL) - started));
    static const char *const promisers[PROMISERS] = {"writers", "pushers", "ranks straight", "assemblers", "copiers"};
    for (int who = 0; who < PROMISERS; who++) {
        (void)printf("%llu frames were acknowledged durable by %s\n", (unsigned long long)sums->promises[who],
                     promisers[who]);
        code = histories >= ALL_PROMISE && sums->promises[who] == 0 ? 1 : code;
    }
    return code;
}
