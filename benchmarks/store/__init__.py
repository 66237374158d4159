"""The frame store beside the disk, memory, and runs without it."""
