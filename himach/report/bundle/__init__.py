"""Bundles of runs: one file with their outputs and code, so that anybody can run them again.

`write_bundle()` makes one of the folders that runs left, a Process Run Crate; `verify()` runs what is in one again and
compares, byte by byte. A bundle is untrusted: its content is checked before use.
"""

from __future__ import annotations
