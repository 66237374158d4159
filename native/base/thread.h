/* Threads of the library. */
#pragma once

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>

/* Start a thread, with all signals left to the others. False: there is none to be had. */
static inline bool thread_start(pthread_t *thread, void *(*function)(void *), void *argument) {
    sigset_t all;
    sigset_t before;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    bool started = pthread_create(thread, NULL, function, argument) == 0;
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}
