"""Tables with one row per frame: gathered to the first rank, read in pieces, summarized, and written.

In reading order: `layout` (dtypes of columns, cells of a chunk), `column` (rows on disk; a column in finish() and after
the run), `tables` (rows of all ranks as a table, in memory or long).
"""
