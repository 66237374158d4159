"""What is made of the folders that runs left (``--out``): a report in one file, and what a paper needs.

Everything is made from these folders alone: no trajectory, no script of the user's and no MDAnalysis is needed. What
they hold is text of unknown origin: it is escaped, and files are read below the folder only.
"""

from __future__ import annotations
