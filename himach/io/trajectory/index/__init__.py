"""Where frames begin in a file and when they were taken, in a few bytes a frame, read where they are needed."""
