"""What a run shows and leaves behind: tables, plots, files and the record.

From below: `plain` and `cells` turn single values into Python's own and into text, `tabular` draws columns side by
side, `table` has `Table` and what counts as one, `parts` takes outcomes apart, and `show` draws those; `summary` sums
up a run, `certainty` says how sure a table is. `jsonable` and `formats` give the bytes of files, `names` and `files`
safe names and whole files, `table_files` tables in other formats, `figures` pictures, `record` the shape of run.json;
`directory` writes ``--out`` with all of them.
"""
