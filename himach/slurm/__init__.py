"""Ranks in a job of SLURM's, for a process that is not in it: the job, what both say to each other, the ranks."""
