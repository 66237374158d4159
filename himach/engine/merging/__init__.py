"""From blocks of all ranks to one series per key."""
