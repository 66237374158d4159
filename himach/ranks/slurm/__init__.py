"""Ranks in a SLURM job, for a process outside it: the job, the steps whose tasks are the ranks."""
