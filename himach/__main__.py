"""The command ``himach``, also as ``python -m himach``: what Ctrl-C ends without a word as long as it is imported."""

import _signal as signal  # type: ignore[import-not-found]  # Python's own imports others before an interrupt is caught


def main() -> None:
    """Import the command line and run it."""
    interrupt = signal.getsignal(signal.SIGINT)
    if interrupt is signal.default_int_handler:  # else it is ignored, as of what a shell runs in the background
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from himach.cli import main as run

    run(interrupt)


if __name__ == "__main__":
    main()
