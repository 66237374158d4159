"""Bundles of runs: one file with their outputs and code, so that anybody can run them again.

`collect_contents()` and `metadata()` describe one as a Process Run Crate, `write_archive()` writes it; `verify()` runs
it again and compares, byte by byte. A bundle is untrusted: its content is checked before use.
"""
