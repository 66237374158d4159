"""Tables with one row per frame: gathered to the first rank.

In reading order: `layout` (dtypes of columns, cells of a chunk), `tables` (rows of all ranks as a table, in memory or
on the disk).
"""
