"""Benchmarks behind ``himach bench``: each prints its figures beside a peer or the limit of the machine."""
