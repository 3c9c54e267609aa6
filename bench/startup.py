"""How long help and completion take, from the start of the process to its end: ``python -m bench.startup``.

Each command is run several times and the best time counts, beside that of importing torch. The commands should take
less than 0.3 s, so that help and TAB feel immediate; the exit code is 1 where one takes longer.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence

ENOUGH = 0.3
COMMANDS = (
    "--version",
    "--help",
    "train --help",
    "train sentiment --help",
    "data get --help",
    "completion bash -- train sent",
)


def seconds(argv: Sequence[str], repeats: int = 5) -> float:
    """The best time of a Python process with these arguments."""
    best = float("inf")
    for _ in range(repeats):
        began = time.perf_counter()
        subprocess.run([sys.executable, *argv], check=True, stdout=subprocess.DEVNULL)
        best = min(best, time.perf_counter() - began)
    return best


def main() -> int:
    """Print a line for each command."""
    found = {f"ampnet {command}": seconds(["-m", "ampnet", *command.split()]) for command in COMMANDS}
    for name, took in {**found, "(import torch)": seconds(["-c", "import torch"], 2)}.items():
        print(f"{name:45s} {took:.3f} s")
    return int(max(found.values()) > ENOUGH)


if __name__ == "__main__":
    sys.exit(main())
