/* Launches as launchers tell them to ranks. */
#ifndef BODHI_TESTS_LAUNCHERS_H
#define BODHI_TESTS_LAUNCHERS_H

void test_launchers(void);

#endif
