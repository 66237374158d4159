"""Files by URL, read by ranges: a node keeps the ranges it has fetched in a local file, from which all readers read."""
