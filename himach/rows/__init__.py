"""Tables of a row a frame, of which each rank has a part: agreed on, read in pieces, summed up, written by all ranks.

In reading order: `layout` (which columns there are), `spread` (which rank has which rows), `writing` (files that all
ranks write), `team` (ranks do what the first one asks), `column` (what finish() sees), `stored` (what a result has of
one), `tables` (whole tables, or long ones).
"""
