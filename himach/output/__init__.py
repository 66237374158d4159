"""What a run shows and leaves behind: tables, plots, files and the record.

From below: `plain` and `cells` turn single values into Python's own and into text, `tabular` draws columns side by
side, `table` has `Table` and what counts as one, `parts` takes outcomes apart, and `show` draws those. `jsonable` and
`formats` give the bytes of files, `names` and `files` safe names and whole files, `plots` pictures, `record` the shape
of run.json; `directory` writes ``--out`` with all of them.
"""
