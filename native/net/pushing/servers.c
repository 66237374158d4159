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
    s->flush_due = s->refuses = false;
}

/* Do not try a server again for a while; what was sent to it is given to others. */
static void back_off(bodhi_pusher *p, server *from) {
    slot *s;
    disconnect(from);
    from->again = false;
    from->retry_at = now_ms() + from->pause_ms;
    from->pause_ms = from->pause_ms * 2 > MAX_PAUSE_MS ? MAX_PAUSE_MS : from->pause_ms * 2;
    while ((s = slots_take(&from->sent)) != NULL) {
        requeue(p, s);
    }
}

/* Another simulation has the dataset: whatever else the other servers take, this one must not go on. */
static void note_conflict(bodhi_pusher *p, const char *reason) {
    if (!p->conflict) {
        (void)snprintf(p->reason, sizeof p->reason, "%s", reason);
    }
    p->conflict = true;
}

void server_begin_dialling(bodhi_pusher *p, server *s, int64_t timeout_ms) {
    disconnect(s);
    dial_request request = {
        .address = s->address, .key_bytes = p->key_bytes, .open = p->open, .timeout_ms = timeout_ms};
    memcpy(request.key, p->key, p->key_bytes);
    memcpy(request.open.token, s->token, WIRE_TOKEN);
    s->dialling = dial_begin(&request);
    if (s->dialling == NULL) {
        back_off(p, s);
    }
    explicit_bzero(request.key, sizeof request.key);
}

/* Send all once more that a server had not acknowledged over its last connection: what it has it acknowledges. */
static void send_again(bodhi_pusher *p, server *s) {
    for (slot *each = s->sent.first; each != NULL; each = each->next) {
        each->again = true;
    }
    p->facts.given_again += s->sent.n;
    s->out = s->sent.first;
    s->again = s->flush_due = s->out != NULL;
}

int server_end_dialling(bodhi_pusher *p, server *s) {
    int status = dial_end(s->dialling, &s->link);
    s->dialling = NULL;
    s->moved_at = now_ms();
    if (status == BODHI_ERROR_CONFLICT) {
        note_conflict(p, bodhi_message());
    }
    if (status == BODHI_OK) {
        send_again(p, s);
    } else {
        back_off(p, s);
    }
    return status;
}

/* A server broke off or was too slow: try it once more. */
static void resync(bodhi_pusher *p, server *s) {
    if (s->again) {
        back_off(p, s);
    } else {
        server_begin_dialling(p, s, patience_of(p));
    }
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
            s->out = s->out->next;
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

static void take_ack(bodhi_pusher *p, server *s, const wire_ack *ack) {
    slot *found = slots_take_number(&s->sent, ack->number, s->out);
    if (found == NULL) {
        return;
    }
    if (ack->status >= 0) {
        s->again = false;
        acknowledged(p, found);
        return;
    }
    p->refused = ack->status;
    s->refuses = true;
    requeue(p, found);
}

/* Take an answer. False: it is none. */
static bool take_answer(bodhi_pusher *p, server *s) {
    bool is_first = !s->refuses; /* of its refusals, the one whose reason has the numbers */
    bool conflict = false;
    size_t records = (size_t)s->link.count * WIRE_ACK_BYTES;
    if (s->link.verb != WIRE_FRAME || s->link.n_bytes < records) {
        return false;
    }
    for (size_t at = 0; at < records; at += WIRE_ACK_BYTES) {
        wire_ack ack;
        memcpy(&ack, s->link.records + at, sizeof ack);
        take_ack(p, s, &ack);
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
    } else if (!s->flush_due && s->unasked > 0) {
        server_ask_for_acks(p, s);
    }
    return true;
}

/* Take all that a server has sent. */
static void receive_acks(bodhi_pusher *p, server *s) {
    while (s->link.fd >= 0) {
        int status = link_receive(&s->link, 0);
        if (status == BODHI_END) {
            return;
        }
        if (status != BODHI_OK || !take_answer(p, s)) {
            resync(p, s);
            return;
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
