/* The datasets of a launch, by what its launcher says; see pusher.h.
 *
 * The slices of one rank in one launch are a dataset of their own, in which a slice is a frame with the atoms that the
 * rank has: what holds for frames holds for them, and those of two launches never meet in a frame. */
#include "net/pusher.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "segments/record.h"

enum { MOST = 1024, HEAD = 128 };

uint64_t mark_of_name(const char *name) {
    uint64_t hash = hash_bytes(name, strlen(name));
    return *name == '\0' ? 0 : hash == 0 ? 1 : hash;
}

static bool add_variable(char out[MOST], const char *name) {
    const char *value = getenv(name);
    bool is_set = value != NULL && *value != '\0';
    size_t n = strlen(out);
    if (is_set) {
        (void)snprintf(out + n, MOST - n, "%s=%s\n", name, value);
    }
    return is_set;
}

/* What one launcher says is enough; of another, which has started it, processes of some machines may know less. */
uint64_t mark_of_launcher(void) {
    static const char *const alone[] = {"PMIX_NAMESPACE", "PALS_APID", "FLUX_JOB_ID"};
    static const char *const steps[] = {"SLURM_STEP_ID", "SLURM_RESTART_COUNT", "PMI_JOBID"};
    char facts[MOST] = "";
    bool enough = false;
    for (size_t i = 0; i < sizeof alone / sizeof *alone && !enough; i++) {
        enough = add_variable(facts, alone[i]);
    }
    if (strstr(facts, "slurm.pmix.") != NULL) { /* job and step, which a job that was queued again has once more */
        (void)add_variable(facts, "SLURM_RESTART_COUNT");
    }
    if (!enough && !add_variable(facts, "SLURM_HET_JOB_ID")) { /* its components have numbers of their own */
        (void)add_variable(facts, "SLURM_JOB_ID");
    }
    for (size_t i = 0; i < sizeof steps / sizeof *steps && !enough; i++) {
        (void)add_variable(facts, steps[i]);
    }
    return mark_of_name(facts);
}

int launch_name_slices(bodhi_pusher *p, const bodhi_slice_options *slices) {
    char head[HEAD];
    uint64_t mark = slices->launch == NULL ? mark_of_launcher() : mark_of_name(slices->launch);
    size_t name = strlen(p->name);
    size_t bytes = p->open.generation_bytes;
    int n = snprintf(head, sizeof head,
                     "slices of rank %" PRId64 ", %" PRId64 " atoms, launch 0000000000, mark %016" PRIx64 "\n",
                     slices->rank, slices->n_atoms, mark); /* the store numbers launches */
    if (name + sizeof BODHI_SLICES_SUFFIX > sizeof p->name || n < 0 || n >= HEAD ||
        bytes > sizeof p->generation - (size_t)n) {
        return bodhi_fail(BODHI_ERROR_ARGUMENT, "the dataset's name or generation is too long for slices");
    }
    memcpy(p->name + name, BODHI_SLICES_SUFFIX, sizeof BODHI_SLICES_SUFFIX);
    memmove(p->generation + n, p->generation, bytes);
    memcpy(p->generation, head, (size_t)n);
    p->open.generation_bytes = bytes + (size_t)n;
    return BODHI_OK;
}
