"""What a run imports, when, and how little of it."""
