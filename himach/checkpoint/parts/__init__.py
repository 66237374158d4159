"""The file format of kept pairs."""
