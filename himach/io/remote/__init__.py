"""Files by URL, read by ranges: what of one has come to this node lies in a local file, from which all readers read."""
