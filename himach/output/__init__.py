"""What a run shows and leaves behind: tables, plots, files and the record.

`table` has `Table` and what counts as one; `plain` turns values into what JSON and a reader take; `show` draws outcomes
as text and HTML; `plots` as pictures; `record` is the shape of run.json; `files` writes ``--out``.
"""
