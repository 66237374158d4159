"""Tables with one row per frame: gathered to the first rank, read in pieces, summarized, and written.

In reading order: `spread` (columns, and rows of all ranks in chunks), `column` (a column in finish() and after the run,
and its output), `tables` (whole tables, or long ones).
"""
