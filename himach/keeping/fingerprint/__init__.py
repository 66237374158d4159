"""What makes one map, by which kept pairs are known: code, values, data, files; what differs between two, in words."""
