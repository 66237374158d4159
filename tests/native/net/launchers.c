/* What launchers tell the ranks that they start; see launchers.h. */
#include "launchers.h"

#include "../check.h"
#include "net/pusher.h"

static const char *const launchers[] = {"PMIX_NAMESPACE", "PALS_APID",        "FLUX_JOB_ID",         "SLURM_JOB_ID",
                                        "SLURM_STEP_ID",  "SLURM_HET_JOB_ID", "SLURM_RESTART_COUNT", "PMI_JOBID"};

static void no_launcher(void) {
    for (size_t i = 0; i < LENGTH(launchers); i++) {
        CHECK(unsetenv(launchers[i]) == 0);
    }
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
}
