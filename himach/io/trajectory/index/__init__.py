"""Where frames begin in a file and when they were taken, for files of any format: in a few bytes a frame."""
