"""Reports on the output folders of runs (``--out``): one file, and what a paper needs.

Only these folders are read: no trajectory, no user script and no MDAnalysis is needed. Their content is untrusted:
text is escaped, and files are read below the folder only.
"""
