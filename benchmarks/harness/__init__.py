"""How things are timed, in turns and beside what limits them, and how figures are told.

`data` (the trajectory), `interleave` (what is timed, in turn), `ranks` (ranks of a benchmark's own), `disk` (reads),
`limits` (what the machine can do), `tools` (what himach is compared with), `contest` (himach and its peers as
processes), `answers`, `figures` and `results` (what was found), `versions` (of himach, side by side).
"""
