"""``python -m ampnet`` and the command ``ampnet``: Ctrl-C is one line from the first moment on."""

import os
import signal
import sys
from types import FrameType


def main() -> int:
    """Run the command line of this process; returns the exit code."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _leave)
    from ampnet.cli import main as run

    return run()


def _leave(number: int, frame: FrameType | None) -> None:
    os.write(2, b"ampnet: interrupted\n")
    os._exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
