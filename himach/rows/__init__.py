"""Tables of a row a frame, gathered to the first rank, read in pieces, summed up, and written.

In reading order: `layout` (which columns there are), `spread` (rows of all ranks, in chunks), `column` (what finish()
sees, and how it is written), `stored` (what a result has of one), `tables` (whole tables, or long ones).
"""
