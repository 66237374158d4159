/* Launches as launchers tell them to ranks. */
#ifndef BODHI_TESTS_LAUNCHERS_H
#define BODHI_TESTS_LAUNCHERS_H

void test_launchers(void);

/* This program, started with a port, is a process that starts ranks, and has one. */
int be_hydra(const char *port);

#endif
