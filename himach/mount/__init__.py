"""Datasets as files: a read-only file system of FUSE that computes TRR, DCD and NetCDF as they are read."""
