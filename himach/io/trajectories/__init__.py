"""Origin files as frames by number: XTC, TRR and H5MD by himach's own, the rest by MDAnalysis's readers."""
