"""The command ``himach``, also as ``python -m himach``: Ctrl-C ends it silently while it is being imported."""

import _signal as signal  # type: ignore[import-not-found]  # `signal` imports others before an interrupt is caught
import os
import sys


def main() -> None:
    """Import the command line and run it."""
    interrupt = signal.getsignal(signal.SIGINT)
    if interrupt is signal.default_int_handler:  # else it is ignored, as for background jobs of a shell
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    _open_closed_streams()
    import resource

    if resource.getrlimit(resource.RLIMIT_FSIZE)[0] != resource.RLIM_INFINITY:
        sys.dont_write_bytecode = True  # Python 3.11 leaves truncated modules behind
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # for ranks
    from himach.cli import main as run

    run(interrupt)


def _open_closed_streams() -> None:
    """Open the null device for closed streams, as by 2>&-, so that no file gets their descriptors."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


if __name__ == "__main__":
    main()
