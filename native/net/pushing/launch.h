/* Which launch of a simulation this process is of: what all processes of one mpiexec or srun have in common. */
#ifndef BODHI_LAUNCH_H
#define BODHI_LAUNCH_H

#include <stdint.h>

/* A number for what the launcher says of itself; 0: it says nothing. */
uint64_t launch_found(void);

/* A number for what the caller says, "" being nothing. */
uint64_t launch_named(const char *name);

#endif
