"""Run the examples of a page of the docs, in order and in one namespace, and hold what they print against the page.

The blocks count as one file, with an empty line between any two, so that lines named in errors and tables are the
reader's. What is printed must be what is shown in the block that follows, word for word, but for two things: a line
"..." stands for any lines, and numbers with a decimal point may be smaller or larger by a third or two units of their
last digit, for they come of training.

    python -m tests.pages docs/tutorial.md tutorial.py      writes into the page what its examples print now
"""

from __future__ import annotations

import contextlib
import io
import linecache
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"```python\n(.*?)```(?:\n\n```\n(.*?)```)?", re.S)
NUMBER = re.compile(r"\d+\.\d+")


def run_page(page: Path, file: str) -> dict[str, Any]:
    """Run the blocks of a page as if they were this file. Gives their namespace."""
    namespace: dict[str, Any] = {"__name__": file.removesuffix(".py")}
    for code, shown, printed in play(page.read_text(encoding="utf-8"), file, namespace):
        compare(printed, shown, code)
    return namespace


def play(text: str, file: str, namespace: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Each block's code, what the page shows after it, and what it prints."""
    blocks = BLOCK.findall(text)
    assert blocks, "a page without examples"
    source = "\n".join(code for code, _ in blocks)
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    above = 0
    try:
        for code, shown in blocks:
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile("\n" * above + code, file, "exec"), namespace)
            yield code, shown, printed.getvalue()
            above += code.count("\n") + 1
    finally:
        linecache.cache.pop(file, None)


def compare(printed: str, shown: str, code: str) -> None:
    """Whether a block printed what the page shows."""
    left = printed.splitlines()
    skipping = False
    for line in shown.splitlines():
        if line.strip() == "...":
            skipping = True
            continue
        while skipping and left and not alike(left[0], line):
            left.pop(0)
        skipping = False
        assert left, f"shown, but not printed: {line!r}\n{code}"
        assert alike(left[0], line), f"printed {left[0]!r}, shown {line!r}\n{code}"
        left.pop(0)
    assert skipping or not left, f"printed, but not shown: {left[0]!r}\n{code}"


def alike(printed: str, shown: str) -> bool:
    if NUMBER.sub("0.0", printed) != NUMBER.sub("0.0", shown):
        return False
    pairs = zip(NUMBER.findall(printed), NUMBER.findall(shown), strict=True)
    return all(near(a, b) for a, b in pairs)


def near(printed: str, shown: str) -> bool:
    """Whether two numbers have as many decimals and are close."""
    decimals = len(shown.partition(".")[2])
    close = abs(float(printed) - float(shown)) <= max(abs(float(shown)) / 3, 2.001 * 10**-decimals)
    return close and len(printed.partition(".")[2]) == decimals


def rewrite(page: Path, file: str) -> None:
    """Put what the examples print into the page."""
    namespace: dict[str, Any] = {"__name__": file.removesuffix(".py")}
    text = page.read_text(encoding="utf-8")
    for code, shown, printed in play(text, file, namespace):
        if shown:
            text = text.replace(f"{code}```\n\n```\n{shown}", f"{code}```\n\n```\n{printed}", 1)
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    rewrite(Path(sys.argv[1]).resolve(), sys.argv[2])
