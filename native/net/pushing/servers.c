/* The servers of a pusher; see pusher.h. */
#include "net/pushing/pusher.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/io.h"
#include "base/status.h"

enum {
    TRIES = 3, /* a server is late after this part of the timeout: another may have its frames in time */
    MAX_PAUSE_MS = 60000
};

/* --- Slots ------------------------------------------------------------------------------------------------------- */

static void acknowledged(bodhi_pusher *p, slot *s) {
    p->bytes -= (int64_t)s->size;
    p->facts.in_flight--;
    p->facts.acknowledged++;
    free(s);
}

static void requeue(bodhi_pusher *p, slot *s) {
    s->again = true;
    slots_append(&p->waiting, s);
}

/* All that was sent to a server is to be sent again. */
static void requeue_all(bodhi_pusher *p, server *from) {
    slot *s;
    while ((s = slots_take(&from->sent)) != NULL) {
        requeue(p, s);
    }
}

/* --- Servers ----------------------------------------------------------------------------------------------------- */

int64_t patience_of(const bodhi_pusher *p) {
    return p->options.timeout_ms / TRIES > 0 ? p->options.timeout_ms / TRIES : 1;
}

static void disconnect(server *s) {
    link_close(&s->link);
    s->asked_at = 0;
    s->unasked = 0;
    s->out = NULL;
    s->out_done = s->out_bytes = 0;
    s->flush_due = false;
}

/* Do not try a server again for a while. */
static void back_off(server *s) {
    disconnect(s);
    s->retry_at = now_ms() + s->pause_ms;
    s->pause_ms = s->pause_ms * 2 > MAX_PAUSE_MS ? MAX_PAUSE_MS : s->pause_ms * 2;
}

/* Another simulation has the dataset: whatever else the other servers take, this one must not go on. */
static void note_conflict(bodhi_pusher *p, const char *reason) {
    if (!p->conflict) {
        (void)snprintf(p->reason, sizeof p->reason, "%s", reason);
    }
    p->conflict = true;
}

/* What is asked about all that was sent to a server, as in a KEEP; NULL: memory is out. */
static unsigned char *questions_about(const server *s) {
    unsigned char *questions = calloc((size_t)s->sent.n + 1, WIRE_KEEP_BYTES);
    unsigned char *at = questions;
    for (const slot *each = s->sent.first; each != NULL && at != NULL; each = each->next) {
        put64(at, each->number);
        memcpy(at + 8, each->message + 12, 4); /* the checksum in its header */
        at += WIRE_KEEP_BYTES;
    }
    return questions;
}

void server_begin_dialling(bodhi_pusher *p, server *s, int64_t timeout_ms) {
    disconnect(s);
    unsigned char *questions = questions_about(s);
    dial_request request = {.address = s->address,
                            .key_bytes = p->key_bytes,
                            .open = p->open,
                            .asked = questions,
                            .n_asked = (size_t)s->sent.n,
                            .timeout_ms = timeout_ms};
    memcpy(request.key, p->key, p->key_bytes);
    memcpy(request.open.token, s->token, WIRE_TOKEN);
    s->dialling = questions == NULL ? NULL : dial_begin(&request);
    if (s->dialling == NULL) {
        back_off(s);
        requeue_all(p, s);
    }
    explicit_bzero(request.key, sizeof request.key);
}

/* Take what a server says of the first frame sent to it. */
static void take_kept(bodhi_pusher *p, server *s, unsigned kept) {
    slot *each = slots_take(&s->sent);
    if (kept == WIRE_HELD) {
        acknowledged(p, each);
        return;
    }
    if (kept == WIRE_OTHER) {
        char reason[256];
        (void)snprintf(reason, sizeof reason, "%.100s: frame %llu of dataset %.60s is there with other content",
                       s->address, (unsigned long long)each->number, p->open.name);
        note_conflict(p, reason);
    }
    requeue(p, each);
}

int server_end_dialling(bodhi_pusher *p, server *s) {
    unsigned char *kept;
    int status = dial_end(s->dialling, &s->link, &kept);
    int64_t n = status == BODHI_OK ? s->sent.n : 0;
    s->dialling = NULL;
    s->moved_at = now_ms();
    if (status == BODHI_ERROR_CONFLICT) {
        note_conflict(p, bodhi_message());
    }
    for (int64_t i = 0; i < n; i++) {
        take_kept(p, s, kept[i]);
    }
    free(kept);
    if (status != BODHI_OK || s->refused_frames) {
        back_off(s);
    }
    s->refused_frames = false;
    requeue_all(p, s);
    return status;
}

/* A server broke off or was too slow: ask it once more what it has. */
static void resync(bodhi_pusher *p, server *s) {
    server_begin_dialling(p, s, patience_of(p));
}

/* --- Sending ----------------------------------------------------------------------------------------------------- */

bool server_is_sending(const server *s) {
    return s->out != NULL || s->flush_due;
}

/* The message that goes now; authenticated before its first byte goes. */
static const unsigned char *message_of(server *s) {
    unsigned char *message = s->out != NULL ? s->out->message : s->flush;
    if (s->out_bytes == 0) {
        size_t size = s->out != NULL ? s->out->size : WIRE_HEADER;
        if (s->out == NULL) {
            wire_header(message, WIRE_FLUSH, NULL, 0);
        }
        const wire_part body = {message + WIRE_HEADER, size - WIRE_HEADER};
        s->out_bytes = size + wire_tag(&s->link.mac, message, &body, 1, message + size);
    }
    return message;
}

void server_send(bodhi_pusher *p, server *s) {
    while (s->link.fd >= 0 && server_is_sending(s)) {
        const unsigned char *message = message_of(s);
        ssize_t sent = link_send_some(&s->link, message + s->out_done, s->out_bytes - s->out_done);
        if (sent < 0) {
            resync(p, s);
        }
        if (sent <= 0) {
            return;
        }
        s->out_done += (size_t)sent;
        s->moved_at = now_ms();
        p->moved += s->out != NULL && !s->out->again ? sent : 0; /* what goes round and round is no progress */
        if (s->out_done < s->out_bytes) {
            continue;
        }
        s->out_done = s->out_bytes = 0;
        if (s->out != NULL) {
            s->out = NULL;
        } else {
            s->flush_due = false;
            s->asked_at = s->asked_at == 0 ? now_ms() : s->asked_at;
        }
    }
}

void server_ask_for_acks(bodhi_pusher *p, server *s) {
    s->unasked = 0;
    s->flush_due = true;
    server_send(p, s);
}

/* --- Acknowledgements -------------------------------------------------------------------------------------------- */

/* Take an ACK. False: the server cannot store frames now. */
static bool take_acks(bodhi_pusher *p, server *s) {
    bool stores = true;
    for (uint32_t at = 0; at + WIRE_ACK_BYTES <= s->link.in.size; at += WIRE_ACK_BYTES) {
        wire_ack ack;
        memcpy(&ack, s->link.in.body + at, sizeof ack);
        slot *found = slots_take_number(&s->sent, ack.number);
        if (found == NULL) {
            continue;
        }
        if (found == s->out) { /* it has not even gone */
            requeue(p, found);
            stores = false;
            break;
        }
        if (ack.status >= 0) {
            acknowledged(p, found);
        } else {
            p->conflict = p->conflict || ack.status == BODHI_ERROR_CONFLICT;
            p->refused = ack.status;
            stores = false;
            requeue(p, found);
        }
    }
    s->asked_at = 0;
    if (stores) {
        s->pause_ms = FIRST_PAUSE_MS;
        p->refused = 0;
    }
    return stores;
}

/* Keep what a server that has refused frames says of it, if it does so at once; it is not asked any more. */
static void take_reason(bodhi_pusher *p, server *s) {
    enum { AT_ONCE_MS = 1000 };
    if (link_receive(&s->link, now_ms() + AT_ONCE_MS) == BODHI_OK && s->link.in.verb == WIRE_ERROR) {
        (void)snprintf(p->reason, sizeof p->reason, "%s: %.*s", s->address, (int)s->link.in.size - 4,
                       (const char *)s->link.in.body + 4);
    }
}

/* Take all that a server has sent. */
static void receive_acks(bodhi_pusher *p, server *s) {
    while (s->link.fd >= 0) {
        int status = link_receive(&s->link, 0);
        if (status == BODHI_END) {
            return;
        }
        if (status != BODHI_OK || s->link.in.verb != WIRE_ACK) {
            resync(p, s);
            return;
        }
        bool conflict = p->conflict;
        if (!take_acks(p, s)) {
            if (!conflict) { /* else the first reason is the one to be told */
                take_reason(p, s);
            }
            if (p->conflict) {
                back_off(s);
            } else {
                s->refused_frames = true;
                resync(p, s); /* what it took before is not given to another */
            }
        }
    }
}

void servers_await(const bodhi_pusher *p, int64_t wait_ms) {
    struct pollfd *polled = p->polled;
    nfds_t n = 0;
    for (int i = 0; i < p->n_servers; i++) {
        const server *s = &p->servers[i];
        if (s->dialling != NULL) {
            polled[n++] = (struct pollfd){.fd = dial_descriptor(s->dialling), .events = POLLIN};
        } else if (s->link.fd >= 0 && s->sent.n > 0) {
            short events = (short)(server_is_sending(s) ? POLLIN | POLLOUT : POLLIN);
            polled[n++] = (struct pollfd){.fd = s->link.fd, .events = events};
        }
    }
    (void)bodhi_io.poll(polled, n, (int)wait_ms);
}

static bool is_late(const bodhi_pusher *p, const server *s, int64_t now) {
    return (s->asked_at != 0 && now - s->asked_at > patience_of(p)) ||
           (server_is_sending(s) && now - s->moved_at > patience_of(p));
}

void servers_go_on(bodhi_pusher *p, int64_t wait_ms) {
    servers_await(p, wait_ms);
    int64_t now = now_ms();
    for (int i = 0; i < p->n_servers; i++) {
        server *s = &p->servers[i];
        if (s->dialling != NULL && dial_has_ended(s->dialling)) {
            (void)server_end_dialling(p, s);
        }
        receive_acks(p, s);
        server_send(p, s);
        if (s->link.fd >= 0 && is_late(p, s, now)) {
            resync(p, s);
        }
    }
}
