"""Fuzzing: the property tests of the suite with new random examples, for a given time.

    make fuzz MINUTES=20
    python -m tests.fuzz --minutes 20
    python -m tests.fuzz --target tests/events/test_forged.py --seed 123456    one again, with the same examples

The suite draws the same examples every time, so that a change of the code is the only reason for a new failure. Here
every round has a new seed:

    round 1   seed 81234   test_random_models.py   test_forged.py   test_wire.py   ...      each in a process of its own
    round 2   seed 55121   ...

A target is a test file with Hypothesis tests (`@given`), or with tests marked ``fuzz`` that take their random numbers
from `seed`; only those tests are run. A failure is printed with the command that repeats it; a test for it belongs into
the suite. The exit code is 1 after a failure.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
VARIABLE = "AMPNET_FUZZ_SEED"
LONGEST = 900
"""Seconds after which a target is taken for hanging."""
WORDS = re.compile(r"^from hypothesis import .*\bgiven\b|pytest\.mark\.fuzz\b", re.M)
COUNT = re.compile(r"(\d+) passing, (\d+) failing, and \d+ invalid|(\d+) passing examples?, (\d+) failing")
NOTHING = 5
"""The exit code of pytest without a test."""


def seed() -> int:
    """Returns the seed of a fuzzing run; 0 in the suite."""
    return int(os.environ.get(VARIABLE, "0"))


def targets() -> list[str]:
    """Returns the test files that can be fuzzed."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(one.relative_to(ROOT)) for one in files if WORDS.search(one.read_text(encoding="utf-8"))]


class Fuzzing:
    """Runs targets and counts what came of it."""

    def __init__(self) -> None:
        self.tests: Counter[str] = Counter()
        self.examples: Counter[str] = Counter()
        self.failures: list[str] = []

    def run(self, target: str, number: int, seconds: float) -> None:
        """Run a target with a seed. If it does not end within the seconds, it is stopped: that is no failure."""
        command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", "-m", "not slow", target]
        command += [f"--hypothesis-seed={number}", "--hypothesis-show-statistics"]
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, VARIABLE: str(number), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            text, _ = process.communicate(timeout=min(seconds, LONGEST))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            if seconds > LONGEST:
                self._failed(target, number, f"it hangs: no end after {LONGEST} s")
            return
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        self.tests[target] += sum(map(int, re.findall(r"(\d+) passed", text)))
        self.examples[target] += sum(int(n) for found in COUNT.findall(text) for n in found if n)
        if process.returncode not in (0, NOTHING):
            self._failed(target, number, text[-6000:])

    def _failed(self, target: str, number: int, text: str) -> None:
        again = f"python -m tests.fuzz --target {target} --seed {number}"
        self.failures.append(again)
        print(f"{text}\nFAILED; again: {again}\n", flush=True)


def main(argv: list[str] | None = None) -> int:
    """Fuzz; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Property tests with new examples.")
    parser.add_argument("--minutes", type=float, default=20.0, help="duration (default: 20)")
    parser.add_argument("--target", action="append", metavar="FILE", help="only this test file (default: all)")
    parser.add_argument("--seed", type=int, help="of the first round; with --target, one round (default: random)")
    parser.add_argument("--list", action="store_true", help="list the targets and exit")
    args = parser.parse_args(argv)
    if args.list:
        print("\n".join(targets()))
        return 0
    fuzzing, until = Fuzzing(), time.monotonic() + 60 * args.minutes
    draw, number, rounds = random.SystemRandom(), args.seed, 0
    while time.monotonic() < until:
        number = draw.randrange(1, 2**31) if number is None else number
        rounds += 1
        print(f"round {rounds}, seed {number}, {max(0.0, until - time.monotonic()) / 60:.1f} minutes left", flush=True)
        files = list(args.target or targets())
        random.Random(number).shuffle(files)
        for target in files:
            left = until - time.monotonic()
            if left <= 0:
                break
            fuzzing.run(target, number, left)
        if args.seed is not None and args.target:
            break
        number = None
    for target in sorted(fuzzing.tests):
        print(f"{fuzzing.examples[target]:8,} examples  {fuzzing.tests[target]:6,} tests  {target}")
    print(f"{fuzzing.examples.total():8,} examples in {rounds} rounds, {len(fuzzing.failures)} failures")
    for again in fuzzing.failures:
        print(f"again: {again}")
    return 1 if fuzzing.failures else 0


if __name__ == "__main__":
    sys.exit(main())
