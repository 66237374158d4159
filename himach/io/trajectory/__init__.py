"""Origin files as frames by number: XTC and TRR by himach's own decoder, the rest by MDAnalysis's readers."""
