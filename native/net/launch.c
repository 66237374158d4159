/* The datasets of a launch, by what its launcher says; see pusher.h.
 *
 * The slices of one rank in one launch are a dataset of their own, in which a slice is a frame with the atoms that the
 * rank has: what holds for frames holds for them, and those of two launches never meet in a frame. */
#include "net/pusher.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/io.h"
#include "base/status.h"
#include "segments/record.h"

enum { MOST = 1024, GENERATIONS = 16, WORDS = 4096, HEAD = 128 };

uint64_t mark_of_name(const char *name) {
    uint64_t hash = hash_bytes(name, strlen(name));
    return *name == '\0' ? 0 : hash == 0 ? 1 : hash;
}

static void add(char out[MOST], const char *what, const char *value) {
    size_t n = strlen(out);
    (void)snprintf(out + n, MOST - n, "%s=%s\n", what, value);
}

static bool add_variable(char out[MOST], const char *name) {
    const char *value = getenv(name);
    bool is_set = value != NULL && *value != '\0';
    if (is_set) {
        add(out, name, value);
    }
    return is_set;
}

/* Read a file of /proc; returns the bytes, behind which there is a 0. */
static size_t read_file(long pid, const char *name, char *out, size_t size) {
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/%ld/%s", pid, name);
    int fd = io_open(AT_FDCWD, path, O_RDONLY);
    ssize_t got = fd < 0 ? -1 : io_read(fd, out, size - 1, 0, READ_ANY);
    io_drop(fd);
    out[got > 0 ? got : 0] = '\0';
    return got > 0 ? (size_t)got : 0;
}

static long parent_of(long pid) {
    char text[512];
    static const char before[] = ") S "; /* end of the program's name, in which anything may be, and the state */
    (void)read_file(pid, "stat", text, sizeof text);
    const char *end = strrchr(text, ')');
    return end != NULL && strlen(end) >= sizeof before ? strtol(end + strlen(before), NULL, 10) : 0;
}

/* MPICH's mpiexec tells nothing of itself but a port, on all machines, to the process that starts its ranks. */
static bool add_hydra(char out[MOST]) {
    char words[WORDS];
    long pid = (long)getppid();
    for (int i = 0; i < GENERATIONS && pid > 1; i++, pid = parent_of(pid)) {
        size_t n = read_file(pid, "cmdline", words, sizeof words);
        for (const char *word = words; word < words + n; word += strlen(word) + 1) {
            const char *value = word + strlen(word) + 1;
            if (strcmp(word, "--control-port") == 0 && value < words + n) {
                add(out, "control-port", value);
                return true;
            }
        }
    }
    return false;
}

/* Whether MPICH's mpiexec was given ports to choose from: it often takes the same one in the next launch. */
static bool ports_are_chosen(void) {
    static const char *const ranges[] = {"PORTRANGE=", "PORT_RANGE="}; /* eleven facts of MPICH's end so */
    bool any = false;
    for (char *const *variable = environ; *variable != NULL; variable++) {
        size_t value = strcspn(*variable, "=") + 1;
        for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
            size_t n = strlen(ranges[i]);
            any = any || (value > n && strncmp(*variable + value - n, ranges[i], n) == 0 && (*variable)[value] != '\0');
        }
    }
    return any;
}

/* What one launcher says is enough; of another, which has started it, processes of some machines may know less. */
uint64_t mark_of_launcher(void) {
    static const char *const alone[] = {"PMIX_NAMESPACE", "PALS_APID", "FLUX_JOB_ID"};
    static const char *const steps[] = {"SLURM_STEP_ID", "SLURM_RESTART_COUNT", "PMI_JOBID"};
    char facts[MOST] = "";
    bool enough = (getenv("PMI_FD") != NULL || getenv("PMI_PORT") != NULL) && !ports_are_chosen() && add_hydra(facts);
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
