"""Figures for print: the style ``himach``, an analysis's plot() drawn in it, and the bytes of its files."""
