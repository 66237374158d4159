"""The Zazen protocol: ranks agree who reads which frame. Knows frame numbers, no molecules."""
