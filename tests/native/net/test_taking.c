/* Bytes of segments taken from another machine's server, which here is a thread that knows them by heart: large parts
 * and small ones, some that are cut short or gone, answers that are wrong or touched. */
#include "../sockets.h"
#include "base/threads.h"
#include "net/served.h"

char doing[256];

enum { END = 2 << 20, GONE = 9, TIMEOUT_MS = 10000 };

enum way { HONEST, LIES, TOUCHED, ONE_MORE };

typedef struct {
    int fd;
    enum way way;
    wire_parser in;
    wire_output out;
    int requests;
} server;

static unsigned char byte_at(uint64_t of, uint64_t offset) {
    return (unsigned char)((offset * 2654435761U >> 13) + of);
}

/* Make an answer. */
static void answer_to(server *s, size_t n) {
    const wire_answer head = {.verb = WIRE_TAKE, .count = (uint16_t)n};
    wire_add(&s->out, &head, sizeof head);
    unsigned char *body = wire_room(&s->out, WIRE_MAX_TAKEN);
    CHECK(body != NULL);
    size_t at = 4 * n;
    for (size_t i = 0; i < n; i++) {
        wire_extent asked;
        memcpy(&asked, s->in.body + i * sizeof asked, sizeof asked);
        uint64_t end = asked.offset + asked.size < END ? asked.offset + asked.size : END;
        put32(body + 4 * i, asked.segment == GONE ? WIRE_GONE : (uint32_t)(end - asked.offset));
        for (uint64_t k = asked.offset; asked.segment != GONE && k < end; k++) {
            body[at++] = byte_at(asked.segment, k);
        }
    }
    if (s->way == LIES && n > 1) {
        put32(body, get32(body) - 1);
        put32(body + 4, get32(body + 4) + 1);
    }
    s->out.n_body += s->way == ONE_MORE ? at + 1 : at;
    CHECK(wire_end(&s->out, WIRE_ANSWER));
}

/* Send what was made; who asked may have gone. */
static void send_all(server *s) {
    ssize_t sent = 1;
    for (size_t at = 0; at < s->out.n && sent > 0; at += sent > 0 ? (size_t)sent : 0) {
        sent = send(s->fd, s->out.bytes + at, s->out.n - at, MSG_NOSIGNAL);
    }
    wire_empty(&s->out);
}

static void *serve(void *argument) {
    server *s = argument;
    while (receive_message(s->fd, &s->in)) {
        CHECK(s->in.verb == WIRE_TAKE);
        s->requests++;
        answer_to(s, s->in.size / sizeof(wire_extent));
        s->out.bytes[s->out.n - MAC_BYTES - 1] ^= s->way == TOUCHED; /* the last byte of the body */
        send_all(s);
    }
    (void)close(s->fd);
    wire_free(&s->in);
    return NULL;
}

static const segment_key keys[] = {{.segment = 5}, {.segment = GONE}};
static const uint8_t kinds[] = {BODHI_NATIVE, BODHI_ALIEN};

/* Take extents from such a server; returns the status. */
static int take(enum way way, fetched *list, size_t n, int *requests) {
    static const uint8_t key[MAC_KEY] = {3, 1, 4};
    static char name[] = "test";
    int ends[2];
    pthread_t thread;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    server s = {.fd = ends[1], .way = way, .in = {.requests = WIRE_SENDS}};
    wire_link link = {.address = name, .fd = ends[0]};
    mac_begin(&link.out.mac, key, true);
    mac_begin(&link.in.mac, key, false);
    mac_begin(&s.out.mac, key, false);
    mac_begin(&s.in.mac, key, true);
    CHECK(pthread_create(&thread, NULL, serve, &s) == 0);
    int status = extents_fetch(&link, TIMEOUT_MS, keys, kinds, list, n);
    link_close(&link);
    CHECK(pthread_join(thread, NULL) == 0);
    *requests = s.requests;
    return status;
}

static void check_bytes(const fetched *one) {
    for (uint64_t i = 0; i < one->size; i++) {
        CHECK(one->to[i] == byte_at(keys[one->segment].segment, one->offset + i));
    }
}

/* Extents of so many bytes, some way apart, the last of which ends `beyond` the segment's end. */
static fetched *extents_of(size_t n, uint64_t size, uint64_t beyond) {
    fetched *list = calloc(n, sizeof *list);
    CHECK(list != NULL);
    for (size_t i = 0; i < n; i++) {
        uint64_t offset = i + 1 == n ? END + beyond - size : i * 7 * size % (END - size);
        list[i] = (fetched){.offset = offset, .size = size, .to = malloc(size)};
        CHECK(list[i].to != NULL);
    }
    return list;
}

static void free_extents(fetched *list, size_t n) {
    for (size_t i = 0; i < n; i++) {
        free(list[i].to);
    }
    free(list);
}

static const struct {
    size_t n;
    uint64_t size;
    int requests;
} shapes[] = {{1, 100, 1}, {300, 100, 2}, {3, 20000, 1}, {4, 200000, 2}, {40, 20000, 2}, {1, 1 << 20, 2}};

static void test_what_is_there(void) {
    for (size_t i = 0; i < LENGTH(shapes); i++) {
        DOING("%zu extents of %llu bytes", shapes[i].n, (unsigned long long)shapes[i].size);
        for (int cut = 0; cut < 3; cut++) {
            int requests;
            size_t n = shapes[i].n;
            fetched *list = extents_of(n, shapes[i].size, cut == 1 ? 10 : 0);
            list[0].segment = cut == 2;
            CHECK(take(HONEST, list, n, &requests) == BODHI_OK);
            CHECK(requests == shapes[i].requests);
            for (size_t k = 0; k < n; k++) {
                int told = cut == 2 && k == 0 ? ENOENT : cut == 1 && k == n - 1 ? -1 : 0;
                CHECK(list[k].error == told);
                if (told == 0) {
                    check_bytes(&list[k]);
                }
            }
            free_extents(list, n);
        }
    }
}

/* Nothing of an answer that is wrong is taken. */
static void test_what_is_wrong(enum way way, size_t n, uint64_t size) {
    int requests;
    DOING("wrong in way %d, %zu extents of %llu bytes", (int)way, n, (unsigned long long)size);
    fetched *list = extents_of(n, size, 0);
    CHECK(take(way, list, n, &requests) == BODHI_ERROR_PROTOCOL);
    for (size_t i = 0; i < n; i++) {
        CHECK(list[i].error == ENOTCONN);
    }
    free_extents(list, n);
}

int main(void) {
    test_what_is_there();
    for (enum way way = LIES; way <= ONE_MORE; way++) {
        test_what_is_wrong(way, 3, 100);
        test_what_is_wrong(way, 3, 20000);
    }
    puts("all passed");
    return 0;
}
