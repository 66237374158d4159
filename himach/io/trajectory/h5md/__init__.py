"""H5MD trajectories, which are groups of arrays: in one HDF5 file, or in the many files of a Zarr directory."""
