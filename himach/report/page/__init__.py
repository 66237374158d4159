"""The page of a report: one HTML file that needs no script and no network, made of the folders that runs left.

`document` puts it together of what the others make: `results` a line for each result, `trust` what speaks for and
against them (computed by `convergence`), `contents` figures and tables, `provenance` where they come from.
"""

from __future__ import annotations
