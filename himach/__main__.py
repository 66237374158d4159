"""``python -m himach``: the same as the command ``himach``."""

from himach.cli import main

if __name__ == "__main__":
    main()
