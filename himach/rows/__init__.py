"""Tables with one row per frame: gathered to the first rank, read in pieces, summarized, and written.

In reading order: `layout` (the columns), `spread` (rows of all ranks, in chunks), `column` (a column in finish(), and
its output), `stored` (a column after the run), `tables` (whole tables, or long ones).
"""
