"""What README shows of `make train`: its command, and the line that it ends with: ``python -m bench.first_run``.

The result rests in `bench/results/first-run.json`, and `python -m bench.readme` copies the line from there.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.machine import describe
from bench.rows import CHECKOUT

COMMAND = re.compile(r"^train:.*\n\t\$\(BIN\)/ampnet (.*)", re.M)


def command() -> list[str]:
    """The words of the command of `make train`."""
    (words,) = COMMAND.findall((CHECKOUT / "Makefile").read_text())
    return shlex.split(words)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the line; the exit code is that of the training."""
    parser = argparse.ArgumentParser(prog="python -m bench.first_run", description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the line there")
    given = parser.parse_args(arguments)
    done = subprocess.run([sys.executable, "-m", "ampnet", *command()], capture_output=True, text=True, cwd=CHECKOUT)
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        return done.returncode
    line = done.stdout.splitlines()[-1]
    print(line)
    if given.json is not None:
        (seconds,) = re.findall(r"epochs?, ([\d.]+) s", line)
        found = {"line": line, "seconds": float(seconds), "machine": describe()}
        given.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
