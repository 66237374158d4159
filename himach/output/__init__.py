"""What a run shows and leaves behind: tables, plots, files and the record.

`cells` has values and columns, `text` formats them, `table` has `Table` and converts to it, `parts` splits and shows
outcomes. `summary` describes a run and the uncertainty of its tables. `file_names` has names of files and formats,
`table_files` and `outcome_files` encode files, `bridge` converts to pandas and xarray, `figures` draws. `record` has
the shape of run.json; `claim` has ``--out`` during a run, `directory` writes it.
"""
