/* The threads that write and sync for the event loop, given tasks by hand: when each comes back, and what the disk
 * knows then. */
#include <poll.h>

#include "../store/sample.h"
#include "../store/syncs.h"
#include "net/wire.h"
#include "server/ingest.h"
#include "store/dataset.h"

enum { SOON_MS = 10000, LONG_ENOUGH_MS = 200, BODY = ATOMS * 12 };

static ingest *in;
static int wake[2];
static atomic_size_t backlog;
static task *came_back;

static void start_ingest(void) {
    watch_syncs();
    CHECK(pipe2(wake, O_NONBLOCK | O_CLOEXEC) == 0);
    in = ingest_start(run, wake[1], &backlog);
    CHECK(in != NULL);
}

static void open_ingest(const char *what) {
    begin_empty(what);
    start_ingest();
}

static void close_ingest(void) {
    CHECK(came_back == NULL);
    ingest_finish(in);
    CHECK(atomic_load(&backlog) == 0);
    ingest_free(in);
    (void)close(wake[0]);
    (void)close(wake[1]);
    close_all();
}

static task *new_task(enum task_verb verb, bool durable, size_t bytes) {
    task *t = task_new(verb, 1, durable);
    CHECK(t != NULL);
    t->body = bytes == 0 ? NULL : calloc(1, bytes);
    CHECK(bytes == 0 || t->body != NULL);
    return t;
}

static bodhi_frame frame_in(void *body, int64_t number) {
    float *values = body;
    for (int64_t i = 0; i < (int64_t)ATOMS * 3; i++) {
        values[i] = value_of(number, i);
    }
    return (bodhi_frame){.number = number, .n_atoms = ATOMS, .positions = values, .velocities = values};
}

static void give_frame(int64_t number, bool durable) {
    task *t = new_task(TASK_FRAME, durable, BODY);
    t->n = BODY;
    t->frame = frame_in(t->body, number);
    ingest_submit(in, t);
}

static void give_flush(bool durable) {
    ingest_submit(in, new_task(TASK_FLUSH, durable, 0));
}

static bool is_woken(int within_ms) {
    struct pollfd polled = {.fd = wake[0], .events = POLLIN};
    return poll(&polled, 1, within_ms) == 1;
}

/* Wait for the next task that comes back, which must be such a one, and a flush that is well. */
static task *take(enum task_verb verb) {
    char bytes[16];
    while (came_back == NULL) {
        CHECK(is_woken(SOON_MS) && read(wake[0], bytes, sizeof bytes) > 0);
        came_back = ingest_take_done(in);
    }
    task *t = came_back;
    came_back = t->next;
    t->next = NULL;
    CHECK(t->verb == verb && (verb == TASK_FRAME || t->status == BODHI_OK));
    return t;
}

static void take_flush(int64_t number, int status) {
    task *t = take(TASK_FRAME);
    CHECK(t->frame.number == number && t->status == status);
    tasks_free(t);
    CHECK(came_back != NULL);
    tasks_free(take(TASK_FLUSH));
}

/* Nothing comes back before the sync that it stands behind has ended. */
static void test_a_sync_under_way(void) {
    open_ingest("tasks behind a sync that is under way");
    atomic_store(&syncs_held, true);
    for (int64_t number = 0; number < 2; number++) {
        give_frame(number, true);
        give_flush(true);
    }
    CHECK(!is_woken(LONG_ENOUGH_MS) && ingest_take_done(in) == NULL && place_of(1).found == 0);
    CHECK(atomic_load(&backlog) >= BODY + 2 * sizeof(task));
    atomic_store(&syncs_held, false);
    take_flush(0, BODHI_OK);
    take_flush(1, BODHI_OK);
    close_ingest();
}

static void test_flushes(void) {
    open_ingest("flushes, plain and durable");
    give_frame(0, false);
    give_flush(false);
    take_flush(0, BODHI_OK);
    CHECK(!is_synced(file_of('n', ".seg")));
    give_frame(1, true);
    give_flush(true);
    take_flush(1, BODHI_OK);
    CHECK(is_synced(file_of('n', ".seg")));
    close_ingest();
}

/* Who wrote a frame need not have synced it. */
static void test_frames_that_are_there(void) {
    open_ingest("frames that are there");
    write_frames(BODHI_NATIVE, 0, 2, 0);
    for (int durable = 0; durable < 2; durable++) {
        forget_syncs();
        give_frame(0, durable == 1);
        give_flush(durable == 1);
        take_flush(0, BODHI_EXISTS);
        CHECK(is_synced(file_of('n', ".seg")) == (durable == 1));
    }
    close_ingest();
}

/* A frame is there as the store is now, whoever has dropped it since the last look. */
static void test_frames_of_others(void) {
    const int64_t numbers[] = {1};
    open_ingest("frames that others drop and write");
    write_frames(BODHI_NATIVE, 0, 2, 0);
    bodhi_dataset *other = open_again(0);
    drop_frames(other, numbers, 1);
    give_frame(1, true);
    give_flush(true);
    take_flush(1, BODHI_OK);
    bodhi_dataset_close(other);
    close_ingest();
}

static atomic_int n_reads;

static ssize_t counted_preadv2(int fd, const struct iovec *parts, int n, off_t offset, int flags) {
    (void)atomic_fetch_add(&n_reads, 1);
    return real.preadv2(fd, parts, n, offset, flags);
}

/* Whether a dataset has any frames is known without a look into sealed tables for each that is pushed. */
static void test_frames_of_a_sealed_dataset(void) {
    enum { PUSHED = FRAMES };
    begin_empty("frames pushed to a sealed dataset");
    bodhi_writer *writer = open_writer(BODHI_NATIVE);
    for (int64_t number = 0; number < FRAMES; number++) {
        CHECK(append(writer, number * number, ATOMS) == BODHI_OK); /* in no even steps */
    }
    CHECK(dataset_is_vacant(run, BODHI_NATIVE) && bodhi_writer_close(writer) == BODHI_OK);
    CHECK(bodhi_dataset_seal(run, 1) == BODHI_OK && !dataset_is_vacant(run, BODHI_NATIVE));
    bodhi_io.preadv2 = counted_preadv2;
    start_ingest();
    for (int64_t number = 0; number < PUSHED; number++) {
        give_frame(1000 + number, false);
    }
    give_flush(false);
    for (int64_t number = 0; number < PUSHED; number++) {
        tasks_free(take(TASK_FRAME));
    }
    tasks_free(take(TASK_FLUSH));
    CHECK(is_there(1000) && is_there(1000 + PUSHED - 1) && atomic_load(&n_reads) < PUSHED);
    for (int64_t number = 0; number < FRAMES; number++) {
        drop_frames(run, (const int64_t[]){number * number}, 1);
    }
    CHECK(!dataset_is_vacant(run, BODHI_NATIVE));
    for (int64_t number = 0; number < PUSHED; number++) {
        drop_frames(run, (const int64_t[]){1000 + number}, 1);
    }
    CHECK(dataset_is_vacant(run, BODHI_NATIVE));
    close_ingest();
}

/* Who said first that the frames are theirs, and pushed none, may not be the one who wrote the first. */
static void test_a_name_taken_meanwhile(void) {
    static const char *const takers[] = {"another", "this", NULL}; /* NULL: the directory was evicted */
    for (size_t i = 0; i < LENGTH(takers); i++) {
        open_ingest("a name that is taken before the first frame comes");
        CHECK(dataset_claim(run, "this", true) == BODHI_OK);
        bodhi_dataset *other = open_again(0);
        if (takers[i] == NULL) {
            CHECK(unlinkat(run->fd, "x-author", 0) == 0);
        } else {
            CHECK(dataset_claim(other, takers[i], true) == BODHI_OK);
        }
        give_frame(0, false);
        give_flush(false);
        take_flush(0, i == 0 ? BODHI_ERROR_CONFLICT : BODHI_OK);
        bodhi_dataset_close(other);
        close_ingest();
    }
}

int main(void) {
    make_home();
    test_a_sync_under_way();
    test_flushes();
    test_frames_that_are_there();
    test_frames_of_others();
    test_frames_of_a_sealed_dataset();
    test_a_name_taken_meanwhile();
    remove_home();
    return 0;
}
