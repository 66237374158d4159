"""What a run gave: its outcomes, how sure they are, its record, the words for a paper, and where they are written."""
