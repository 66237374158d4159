"""What a run shows and leaves behind: tables, plots, files and the record.

From below: `cells` has values and columns, `text` draws them side by side, `table` has `Table` and what counts as one,
`parts` takes outcomes apart and shows them; `summary` sums up a run and tells how sure a table is. `names` has those of
files, formats, `csv_text`, `table_files` and `formats` give the bytes of files, the `bridge` goes to pandas and xarray;
`figures` are pictures, `record` the shape of run.json; `claim` has ``--out`` during a run, `directory` writes it.
"""
