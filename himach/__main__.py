"""The command ``himach``, also as ``python -m himach``: what Ctrl-C ends without a word as long as it is imported."""

import _signal as signal  # type: ignore[import-not-found]  # Python's own imports others before an interrupt is caught
import os
import sys


def main() -> None:
    """Import the command line and run it, while the ranks that it names begin."""
    interrupt = signal.getsignal(signal.SIGINT)
    if interrupt is signal.default_int_handler:  # else it is ignored, as of what a shell runs in the background
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    _open_closed_streams()
    if (ranks := _ranks(sys.argv[1:])) > 1:
        from himach.launch.rank_pool import start_ahead

        start_ahead(ranks)
    from himach.cli import main as run

    run(interrupt)


def _open_closed_streams() -> None:
    """Open the null device for streams that were closed, as by 2>&-: no file takes their descriptors then."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


def _ranks(words: list[str]) -> int:
    """Return how many ranks a command will start for one run, as far as a glance at its words tells; else 0."""
    last = {"--follow", "--help", "-h"}
    if words[:1] != ["run"] or any(word in last or "://" in word for word in words):
        return 0
    number = words[words.index("-n") + 1 :][:1] if "-n" in words else []
    return int(number[0]) if number and number[0].isdecimal() else 0


if __name__ == "__main__":
    main()
