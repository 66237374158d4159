"""Ranks in a SLURM job, for a process outside it: the job, messages between both, the ranks."""
