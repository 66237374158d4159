"""H5MD trajectories, groups of arrays in an HDF5 file or in the files of a Zarr directory."""
