"""Snakemake wrapper for himach run: analyses of a molecular-dynamics trajectory, or of an ensemble, in parallel."""

__author__ = "The himach developers"
__copyright__ = "Copyright 2026, The himach developers"
__license__ = "BSD-3-Clause"

import shlex

from snakemake.shell import shell


def as_list(value):
    """Return several files or names as a list; one is a list of one."""
    return [str(value)] if isinstance(value, str) else [str(one) for one in value]


def options(name, values):
    """Return an option once for each value."""
    return [word for value in values for word in (name, value)]


# What is analysed and how: built-in names, a script of the workflow, or module:Class.
analyses = as_list(snakemake.input.get("script", snakemake.params.get("analysis", "")))
words = ["himach", "run", *filter(None, analyses)]
for name in ("trajectory", "topology", "ensemble", "reference"):
    words += options(f"--{name}", as_list(snakemake.input.get(name, [])))
parameters = snakemake.params.get("parameters", {})
words += options("-p", [f"{name}={value}" for name, value in parameters.items()])
words += ["--out", snakemake.output.get("out", snakemake.output[0]), "--quiet"]

# Ranks: tasks of a job of the cluster where the rule has resources.mpi, else of this machine.
launcher = snakemake.resources.get("mpi", "")
if launcher:
    tasks = snakemake.resources.get("tasks", snakemake.threads)
    words = [*shlex.split(launcher), "-n", str(tasks), *words]
elif snakemake.threads > 1:
    words += ["-n", str(snakemake.threads)]

command = shlex.join(words)
extra = snakemake.params.get("extra", "")
log = snakemake.log_fmt_shell(stdout=True, stderr=True)

shell("{command} {extra} {log}")
