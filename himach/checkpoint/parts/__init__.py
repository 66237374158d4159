"""Files of kept pairs: what is in them, byte by byte."""
