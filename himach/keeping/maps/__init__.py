"""What makes one map, by which kept pairs are known: code, values, data; and what differs between two, in words."""
