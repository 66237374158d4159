/* The servers of a pusher, each with a thread: one that is dead or slow keeps nobody from pushing to the others. */
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/io.h"
#include "base/status.h"
#include "base/threads.h"
#include "net/pusher.h"

enum {
    FIRST_PAUSE_MS = 1000, /* before a server that failed is tried again */
    TRIES = 3,             /* a server is late after this part of the timeout: another may have its frames in time */
    MAX_PAUSE_MS = 60000,
    STALLED_MS = 250, /* a server that takes no bytes for so long is left to itself */
    LONG_MS = 3600 * 1000,
    CHUNK = 256 << 10, /* bytes that go before anybody looks whether they do */
    QUEUED = 1 << 20   /* bytes of frames that wait for a server while it takes others */
};

static _Thread_local const bodhi_pusher *mine;
static atomic_int running;

/* --- Frames in flight -------------------------------------------------------------------------------------------- */

void slots_append(slot_list *list, slot *s) {
    s->next = NULL;
    if (list->first == NULL) {
        list->first = s;
    } else {
        list->last->next = s;
    }
    list->last = s;
    list->n++;
}

/* The first slot, taken off; NULL: there is none. */
static slot *slots_take(slot_list *list) {
    slot *s = list->first;
    if (s != NULL) {
        list->first = s->next;
        list->n--;
    }
    return s;
}

static void slots_free(slot_list *list) {
    slot *s;
    while ((s = slots_take(list)) != NULL) {
        free(s);
    }
}

slot *slots_make(const bodhi_frame *frame) {
    size_t size = wire_frame_bytes(frame);
    slot *s = malloc(sizeof *s + WIRE_HEADER + size + MAC_BYTES);
    if (s == NULL) {
        return NULL;
    }
    wire_write_frame(s->message + WIRE_HEADER, frame);
    wire_header(s->message, WIRE_FRAME, size);
    s->number = (uint64_t)frame->number;
    s->size = WIRE_HEADER + size;
    s->again = false;
    return s;
}

/* --- The pusher --------------------------------------------------------------------------------------------------- */

bodhi_pusher *pusher_new(void) {
    bodhi_pusher *p = calloc(1, sizeof *p);
    pthread_condattr_t attributes;
    if (p != NULL) {
        (void)pthread_condattr_init(&attributes);
        (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
        (void)pthread_mutex_init(&p->mutex, NULL);
        (void)pthread_cond_init(&p->changed, &attributes);
        (void)pthread_condattr_destroy(&attributes);
        p->holders = 1;
    }
    return p;
}

static void free_pusher(bodhi_pusher *p) {
    direct_close(p);
    id_order_free(&p->order);
    free(p->vectors);
    for (int i = 0; p->servers != NULL && i < p->n_servers; i++) {
        slots_free(&p->servers[i].sent);
        io_drop(p->servers[i].wake);
        free(p->servers[i].address);
    }
    slots_free(&p->waiting);
    free(p->servers);
    (void)pthread_mutex_destroy(&p->mutex);
    (void)pthread_cond_destroy(&p->changed);
    explicit_bzero(p->key, sizeof p->key);
    free(p);
}

void pusher_let_go(bodhi_pusher *p) {
    bool last = --p->holders == 0;
    pthread_mutex_unlock(&p->mutex);
    if (last) {
        free_pusher(p);
    }
}

/* --- Giving frames ----------------------------------------------------------------------------------------------- */

static void requeue(bodhi_pusher *p, slot *s) {
    s->again = true;
    slots_append(&p->waiting, s);
}

/* The server that a frame's number names, or the next one that takes it; NULL: none takes it now, or it is to wait for
 * one that is busy with frames before it. */
static server *choose_server(bodhi_pusher *p, uint64_t number) {
    int64_t stalled_before = now_ms() - STALLED_MS;
    for (int tried = 0; tried < p->n_servers && !p->conflict; tried++) {
        server *s = &p->servers[(p->start + number + (uint64_t)tried) % (uint64_t)p->n_servers];
        if (s->link.fd >= 0 && !s->refuses && (s->out == NULL || s->moved_at > stalled_before)) {
            return s->out == NULL || s->unsent < QUEUED ? s : NULL;
        }
    }
    return NULL;
}

void server_wake(const server *s) {
    const uint64_t wake_up = 1;
    ssize_t put = write(s->wake, &wake_up, sizeof wake_up); /* an eventfd takes it */
    (void)put;
}

void servers_give(bodhi_pusher *p) {
    server *to;
    while (p->waiting.n > 0 && (to = choose_server(p, p->waiting.first->number)) != NULL) {
        slot *next = slots_take(&p->waiting);
        slots_append(&to->sent, next);
        p->facts.given_again += next->again;
        to->unsent += next->size;
        if (to->out == NULL) {
            to->out = next;
            to->moved_at = now_ms();
            server_wake(to);
        }
    }
}

void servers_try(bodhi_pusher *p) {
    for (int i = 0; i < p->n_servers; i++) {
        p->servers[i].retry_at = 0;
        p->servers[i].pause_ms = FIRST_PAUSE_MS;
        server_wake(&p->servers[i]);
    }
}

void servers_ask_for_acks(bodhi_pusher *p) {
    for (int i = 0; i < p->n_servers; i++) {
        server *s = &p->servers[i];
        if (s->link.fd >= 0 && !s->flush_due && (s->unasked > 0 || s->out != NULL)) {
            s->flush_due = true;
            server_wake(s);
        }
    }
}

/* --- Connections ------------------------------------------------------------------------------------------------- */

/* How long a server may take before it is late. */
static int64_t patience_of(const bodhi_pusher *p) {
    return p->options.timeout_ms / TRIES > 0 ? p->options.timeout_ms / TRIES : 1;
}

static void disconnect(server *s) {
    link_close(&s->link);
    s->asked_at = 0;
    s->unasked = 0;
    s->unsent = 0;
    s->out = NULL;
    s->flush_due = s->refuses = false;
}

/* Leave a server alone for a while that broke off, is late or refuses; other servers get its frames. */
static void back_off(bodhi_pusher *p, server *from) {
    slot *s;
    disconnect(from);
    from->retry_at = now_ms() + from->pause_ms;
    from->pause_ms = from->pause_ms * 2 > MAX_PAUSE_MS ? MAX_PAUSE_MS : from->pause_ms * 2;
    while ((s = slots_take(&from->sent)) != NULL) {
        requeue(p, s);
    }
    servers_give(p);
}

static int is_closing(void) {
    bodhi_pusher *p = (bodhi_pusher *)(uintptr_t)mine;
    pthread_mutex_lock(&p->mutex);
    bool closing = p->closing;
    pthread_mutex_unlock(&p->mutex);
    return closing;
}

/* Connect to a server and open the dataset; the mutex is not held. */
static int dial(const server *s, wire_link *link, int64_t timeout_ms) {
    const bodhi_pusher *p = s->pusher;
    int64_t deadline = now_ms() + timeout_ms;
    int status = link_dial(link, s->address, geteuid(), p->key_bytes > 0 ? p->key : NULL, p->key_bytes, deadline);
    status = status == BODHI_OK ? link_open(link, &p->open, NULL, deadline) : status;
    link->interrupted = NULL; /* from now on it is woken */
    link->wake = &s->wake;
    return status;
}

static void connect_to(bodhi_pusher *p, server *s) {
    wire_link link = {.fd = -1, .interrupted = is_closing};
    int64_t timeout_ms = s->tried ? patience_of(p) : p->options.timeout_ms;
    pthread_mutex_unlock(&p->mutex);
    int status = dial(s, &link, timeout_ms);
    pthread_mutex_lock(&p->mutex);
    p->n_untried -= !s->tried;
    s->tried = true;
    if (status == BODHI_OK) {
        s->link = link;
        servers_give(p);
        return;
    }
    link_close(&link);
    p->dial_status = status;
    (void)snprintf(p->dial_message, sizeof p->dial_message, "%s", bodhi_message());
    if (status == BODHI_ERROR_CONFLICT && !p->conflict) {
        /* Another simulation has the dataset: whatever else the other servers take, this one must not go on. */
        (void)snprintf(p->reason, sizeof p->reason, "%s", bodhi_message());
        p->conflict = true;
    }
    back_off(p, s);
}

/* --- Acknowledgements -------------------------------------------------------------------------------------------- */

/* Take what a server says of the first frame that it has not spoken of. False: it was sent another one. */
static bool take_ack(bodhi_pusher *p, server *s, const wire_ack *ack) {
    slot *frame = s->sent.first;
    if (frame == s->out || frame->number != ack->number) {
        return false;
    }
    (void)slots_take(&s->sent);
    if (ack->status >= 0) {
        p->bytes -= (int64_t)frame->size;
        p->facts.in_flight--;
        p->facts.acknowledged++;
        free(frame);
    } else {
        p->refused = ack->status;
        s->refuses = true;
        requeue(p, frame);
    }
    return true;
}

/* Take an answer. False: it is none. */
static bool take_answer(bodhi_pusher *p, server *s) {
    bool is_first = !s->refuses; /* of its refusals, the one whose reason has the numbers */
    bool conflict = false;
    size_t records = (size_t)s->link.count * sizeof(wire_ack);
    if (s->link.verb != WIRE_FRAME || s->link.n_bytes < records) {
        return false;
    }
    for (size_t at = 0; at < records; at += sizeof(wire_ack)) {
        wire_ack ack;
        memcpy(&ack, s->link.records + at, sizeof ack);
        if (!take_ack(p, s, &ack)) {
            return false;
        }
        conflict = conflict || ack.status == BODHI_ERROR_CONFLICT;
    }
    if (s->link.n_bytes > records && !p->conflict && (is_first || conflict)) {
        (void)snprintf(p->reason, sizeof p->reason, "%s: %.*s", s->address, (int)(s->link.n_bytes - records),
                       (const char *)s->link.records + records);
    }
    p->conflict = p->conflict || conflict;
    s->asked_at = s->asked_at == 0 || s->sent.n == 0 ? 0 : now_ms();
    if (!s->refuses) {
        s->pause_ms = FIRST_PAUSE_MS;
        p->refused = 0;
    } else if (s->sent.n == 0 || conflict) {
        back_off(p, s);
    } else {
        s->flush_due = s->flush_due || s->unasked > 0 || s->out != NULL;
        servers_give(p);
    }
    return true;
}

/* Wait for an answer until somebody wakes us, the server is late, or not at all. */
static void receive(bodhi_pusher *p, server *s, bool waits) {
    int64_t now = now_ms();
    int64_t late_at = s->asked_at == 0 ? now + LONG_MS : s->asked_at + patience_of(p);
    uint64_t woken;
    pthread_mutex_unlock(&p->mutex);
    int status = link_receive(&s->link, waits ? late_at : now);
    ssize_t got = waits ? read(s->wake, &woken, sizeof woken) : 0;
    (void)got;
    pthread_mutex_lock(&p->mutex);
    if (status == BODHI_OK ? !take_answer(p, s) : status != BODHI_END || now_ms() >= late_at) {
        back_off(p, s);
    }
}

/* --- Sending ----------------------------------------------------------------------------------------------------- */

/* Send bytes; the mutex is held before and afterwards. */
static int send_bytes(bodhi_pusher *p, server *s, const unsigned char *bytes, size_t size) {
    pthread_mutex_unlock(&p->mutex);
    int status = link_send(&s->link, bytes, size, now_ms() + patience_of(p));
    pthread_mutex_lock(&p->mutex);
    s->moved_at = now_ms();
    return p->closing ? BODHI_ERROR_INTERRUPTED : status;
}

static void send_frame(bodhi_pusher *p, server *s) {
    slot *each = s->out;
    size_t size = wire_seal(&s->link.out.mac, each->message, each->size);
    int status = BODHI_OK;
    for (size_t at = 0; at < size && status == BODHI_OK; at += CHUNK) {
        size_t n = size - at < CHUNK ? size - at : CHUNK;
        status = send_bytes(p, s, each->message + at, n);
        p->moved += each->again ? 0 : (int64_t)n; /* what goes round and round is no progress */
    }
    if (status != BODHI_OK) {
        back_off(p, s);
        return;
    }
    s->out = each->next;
    s->unsent -= each->size;
    s->unasked += (int64_t)each->size;
    servers_give(p);
    receive(p, s, false);
}

static void send_flush(bodhi_pusher *p, server *s) {
    unsigned char message[WIRE_HEADER + MAC_BYTES];
    wire_header(message, WIRE_FLUSH, 0);
    size_t size = wire_seal(&s->link.out.mac, message, WIRE_HEADER);
    s->flush_due = s->flush_due && s->out != NULL;
    s->unasked = 0;
    s->asked_at = s->asked_at == 0 ? now_ms() : s->asked_at;
    if (send_bytes(p, s, message, size) != BODHI_OK) {
        back_off(p, s);
    }
}

/* --- The thread -------------------------------------------------------------------------------------------------- */

static void wait_to_retry(bodhi_pusher *p, server *s) {
    struct pollfd wake = {.fd = s->wake, .events = POLLIN};
    int64_t left = p->conflict ? -1 : s->retry_at - now_ms();
    uint64_t woken;
    pthread_mutex_unlock(&p->mutex);
    (void)bodhi_io.poll(&wake, 1, (int)left);
    ssize_t got = read(s->wake, &woken, sizeof woken);
    (void)got;
    pthread_mutex_lock(&p->mutex);
}

static void *serve(void *argument) {
    server *s = argument;
    bodhi_pusher *p = s->pusher;
    mine = p;
    pthread_mutex_lock(&p->mutex);
    while (!p->closing) {
        bool connected = s->link.fd >= 0;
        if (!connected && (p->conflict || now_ms() < s->retry_at)) {
            wait_to_retry(p, s);
        } else if (!connected) {
            connect_to(p, s);
        } else if (s->unasked >= p->options.batch_bytes || (s->flush_due && s->out == NULL && s->sent.n > 0)) {
            send_flush(p, s);
        } else if (s->out != NULL) {
            send_frame(p, s);
        } else {
            s->flush_due = false;
            receive(p, s, true);
        }
        pthread_cond_broadcast(&p->changed);
    }
    disconnect(s);
    pusher_let_go(p);
    (void)atomic_fetch_sub(&running, 1);
    return NULL;
}

bool server_start(server *s) {
    pthread_t thread;
    (void)atomic_fetch_add(&running, 1);
    s->pusher->holders++;
    s->pause_ms = FIRST_PAUSE_MS;
    bool started = thread_start(&thread, serve, s);
    if (started) {
        (void)pthread_detach(thread); /* resolving a name may take long, and is not waited for */
    } else {
        s->pusher->holders--;
        (void)atomic_fetch_sub(&running, 1);
    }
    return started;
}

int servers_running(void) {
    return atomic_load(&running);
}
