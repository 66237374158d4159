/* What launchers tell the ranks that they start; see launchers.h. */
#include "launchers.h"

#include "../check.h"
#include "net/pusher.h"

static const char *const launchers[] = {"PMIX_NAMESPACE", "PALS_APID",        "FLUX_JOB_ID",         "SLURM_JOB_ID",
                                        "SLURM_STEP_ID",  "SLURM_HET_JOB_ID", "SLURM_RESTART_COUNT", "PMI_JOBID",
                                        "PMI_FD",         "PMI_PORT"};
static const char *const ranges[] = {"MPIEXEC_PORTRANGE",     "MPIEXEC_PORT_RANGE",       "MPICH_PORTRANGE",
                                     "MPICH_PORT_RANGE",      "MPICH_CH3_PORT_RANGE",     "MPIR_CVAR_CH3_PORT_RANGE",
                                     "MPIR_CVAR_PORTRANGE",   "MPIR_CVAR_PORT_RANGE",     "MPIR_PARAM_PORTRANGE",
                                     "MPIR_PARAM_PORT_RANGE", "MPIR_PARAM_CH3_PORT_RANGE"};

static void no_launcher(void) {
    for (size_t i = 0; i < LENGTH(launchers); i++) {
        CHECK(unsetenv(launchers[i]) == 0);
    }
    for (size_t i = 0; i < LENGTH(ranges); i++) {
        CHECK(unsetenv(ranges[i]) == 0);
    }
}

/* A rank of MPICH's mpiexec, of which only the process that starts ranks tells anything. */
static void be_under_hydra(const char *port) {
    no_launcher();
    CHECK(mark_of_launcher() == 0); /* what else starts a process that is told a port is no launcher */
    CHECK(setenv("PMI_FD", "9", 1) == 0);
    char said[64];
    (void)snprintf(said, sizeof said, "control-port=%s\n", port);
    CHECK(mark_of_launcher() == mark_of_name(said));
    CHECK(setenv("SLURM_JOB_ID", "1", 1) == 0 && mark_of_launcher() == mark_of_name(said));
    for (size_t i = 0; i < LENGTH(ranges); i++) {
        CHECK(setenv(ranges[i], "", 1) == 0 && mark_of_launcher() == mark_of_name(said));
        CHECK(setenv(ranges[i], "50000:50010", 1) == 0 && mark_of_launcher() == mark_of_name("SLURM_JOB_ID=1\n"));
        CHECK(unsetenv("SLURM_JOB_ID") == 0 && mark_of_launcher() == 0);
        CHECK(setenv("SLURM_JOB_ID", "1", 1) == 0 && unsetenv(ranges[i]) == 0);
    }
}

static void await_child(pid_t child) {
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

int be_hydra(const char *port) {
    DOING("what a launcher says that tells its ranks nothing");
    pid_t child = fork();
    if (child == 0) {
        be_under_hydra(port);
        _exit(0);
    }
    await_child(child);
    return 0;
}

static void test_hydra(void) {
    pid_t child = fork();
    if (child == 0) {
        (void)execl("/proc/self/exe", "test_slices", "--control-port", "node:50000", NULL);
        _exit(1);
    }
    await_child(child);
}

void test_launchers(void) {
    DOING("what a launcher says");
    no_launcher();
    CHECK(mark_of_launcher() == 0 && mark_of_name("") == 0 && mark_of_name("a") != mark_of_name("b"));
    CHECK(setenv("SLURM_JOB_ID", "1", 1) == 0);
    uint64_t job = mark_of_launcher();
    CHECK(setenv("SLURM_STEP_ID", "0", 1) == 0);
    uint64_t step = mark_of_launcher();
    CHECK(setenv("SLURM_RESTART_COUNT", "1", 1) == 0);
    uint64_t restarted = mark_of_launcher();
    CHECK(job != 0 && step != job && restarted != step && restarted != job && mark_of_launcher() == restarted);
    CHECK(setenv("SLURM_HET_JOB_ID", "1", 1) == 0);
    uint64_t component = mark_of_launcher();
    CHECK(setenv("SLURM_JOB_ID", "2", 1) == 0 && mark_of_launcher() == component);
    CHECK(setenv("PMIX_NAMESPACE", "prterun-1@1", 1) == 0);
    uint64_t space = mark_of_launcher();
    CHECK(unsetenv("SLURM_HET_JOB_ID") == 0 && mark_of_launcher() == space && space != component);
    CHECK(setenv("PMIX_NAMESPACE", "slurm.pmix.77.0", 1) == 0 && setenv("SLURM_RESTART_COUNT", "0", 1) == 0);
    uint64_t before = mark_of_launcher();
    CHECK(setenv("SLURM_RESTART_COUNT", "1", 1) == 0 && mark_of_launcher() != before);
    test_hydra();
}
