"""Tables for other programs: the bytes of CSV, Parquet, NetCDF and .xvg files, and objects of pandas and xarray."""
