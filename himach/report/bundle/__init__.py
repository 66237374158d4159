"""Bundles of runs: one file with what they left and the code that made it, by which anybody can run them again.

`write_bundle()` makes one of the folders that runs left, a Process Run Crate; `verify()` runs what is in one again and
compares, byte by byte. A bundle is a file of unknown origin: nothing of it is believed that was not checked.
"""

from __future__ import annotations
