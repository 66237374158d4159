/* Connecting in a thread; see connect_async.h. */
#include "net/connect_async.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/io.h"
#include "base/status.h"
#include "base/thread.h"

struct dialling {
    dial_request request; /* with an address of its own */
    char *address;        /* the caller's */
    int ended;            /* an eventfd */
    int status;
    char message[512];
    wire_link link;
    atomic_bool has_ended, abandoned;
    atomic_int holders; /* the thread, and who has begun it */
};

static _Thread_local dialling *mine;
static atomic_int running;

static int is_abandoned(void) {
    return atomic_load(&mine->abandoned) ? 1 : 0;
}

static void let_go(dialling *d) {
    if (atomic_fetch_sub(&d->holders, 1) > 1) {
        return;
    }
    link_close(&d->link);
    io_drop(d->ended);
    free(d->request.address);
    explicit_bzero(d->request.key, sizeof d->request.key);
    free(d);
}

static int connect_link(dialling *d) {
    const dial_request *r = &d->request;
    int64_t deadline = now_ms() + r->timeout_ms;
    const uint8_t *key = r->key_bytes > 0 ? r->key : NULL;
    int status = link_dial(&d->link, r->address, geteuid(), key, r->key_bytes, deadline);
    if (status == BODHI_OK) {
        status = link_open(&d->link, r->open.flags, r->open.token, r->open.name, r->open.generation,
                           r->open.generation_bytes, r->open.identity, NULL, deadline);
    }
    return status;
}

static void *run(void *argument) {
    dialling *d = argument;
    mine = d;
    d->status = connect_link(d);
    if (d->status != BODHI_OK) {
        (void)snprintf(d->message, sizeof d->message, "%s", bodhi_message());
        link_close(&d->link);
    }
    d->link.interrupted = NULL;
    atomic_store(&d->has_ended, true);
    const uint64_t one = 1;
    ssize_t put = write(d->ended, &one, sizeof one); /* an eventfd takes it */
    (void)put;
    let_go(d);
    (void)atomic_fetch_sub(&running, 1);
    return NULL;
}

static bool start(dialling *d) {
    pthread_t thread;
    (void)atomic_fetch_add(&running, 1);
    bool started = thread_start(&thread, run, d);
    if (started) {
        (void)pthread_detach(thread); /* resolving a name may take long, and is not waited for */
    } else {
        (void)atomic_fetch_sub(&running, 1);
    }
    return started;
}

dialling *dial_begin(const dial_request *request) {
    dialling *d = calloc(1, sizeof *d);
    if (d == NULL) {
        return NULL;
    }
    d->request = *request;
    d->address = request->address;
    d->request.address = strdup(request->address);
    d->link = (wire_link){.fd = -1, .interrupted = is_abandoned};
    d->ended = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    atomic_store(&d->holders, 2);
    if (d->request.address == NULL || d->ended < 0 || !start(d)) {
        atomic_store(&d->holders, 1);
        let_go(d);
        return NULL;
    }
    return d;
}

int dial_descriptor(const dialling *d) {
    return d->ended;
}

bool dial_has_ended(const dialling *d) {
    return atomic_load(&d->has_ended);
}

int dial_end(dialling *d, wire_link *link) {
    int status = d->status;
    *link = d->link;
    link->address = d->address;
    d->link = (wire_link){.fd = -1};
    if (status != BODHI_OK) {
        status = bodhi_fail(status, "%s", d->message);
    }
    let_go(d);
    return status;
}

void dial_abandon(dialling *d) {
    atomic_store(&d->abandoned, true);
    let_go(d);
}

int dial_running(void) {
    return atomic_load(&running);
}
