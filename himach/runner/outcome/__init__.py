"""Results of a run: outcomes, their uncertainties, the record, texts for a paper, and where they are written."""
