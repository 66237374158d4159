"""Tests that come with himach: ``pytest --pyargs himach`` tells in half a minute whether what is installed works here.

They need pytest, and nothing of the source tree: the frames are those of `himach.examples.sample`, and what is expected
is what MDAnalysis finds.
"""
