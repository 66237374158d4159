"""Who is with whom, and for how long: water, ions, hydrogen bonds, contacts."""
