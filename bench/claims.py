"""Claims: every number and every measured statement in README.md, and what it rests on.

    generated     what stands between the marks of `bench.readme`, and the closing line of `make train`
    `CLAIMS`      statements in the prose: a file of results, and whether the statement follows from it
    `SETTINGS`    numbers that nobody measured: versions, years, names, values in examples

`unfounded` finds numbers that are none of these, so a number cannot be written into the page without a result, and a
result cannot change without the page. Tests run all of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from bench.readme import BEGIN, END, read

Holds = Callable[[dict[str, Any], tuple[float, ...]], bool]


@dataclass(frozen=True, slots=True)
class Claim:
    """A statement of the page."""

    says: str
    """A regular expression that finds it; its groups are numbers."""
    file: str
    """In bench/results."""
    keys: str
    """Which values of the file, for readers."""
    holds: Holds
    """Whether the statement follows from the file, given the numbers of its groups."""

    def found(self, text: str) -> list[re.Match[str]]:
        return list(re.finditer(self.says, text))

    def kept(self, match: re.Match[str]) -> bool:
        return self.holds(read(self.file), tuple(float(number.replace(",", "")) for number in match.groups()))


def _trace_is_cheap(found: dict[str, Any], percents: tuple[float, ...]) -> bool:
    ratios = [rows["trace"]["ratio"] for rows in found.values() if isinstance(rows, dict) and "trace" in rows]
    return bool(ratios) and min(ratios) >= 1 - percents[0] / 100 and max(ratios) >= 0.97


CLAIMS = (
    Claim(
        r"\((\d+) to (\d+) s of training on one core\)",
        "first-run.json",
        "seconds",
        lambda found, span: span[0] <= found["seconds"] <= span[1],
    ),
    Claim(
        r"costs (?:a few per cent of the speed, and up to (\d+) % where waves are short)",
        "engine.json",
        "*.trace.ratio",
        _trace_is_cheap,
    ),
    Claim(
        r"a worker that dies or hangs is reported within seconds",
        "kills.json",
        "recovered_after.most",
        lambda found, _: found["recovered_after"]["most"] < 10,
    ),
)
SETTINGS = (
    r"Python 3\.11",
    r"2017",
    r"to 97 %",
    r"on x86",
    r"from 16 to 4,096 workers",
    r"--[\w-]+ \d\S*",
    r"# .*",
)
"""Patterns of what is no measurement."""
NUMBER = re.compile(r"(?<![\w.-])\d[\d,]*(?:\.\d+)?(?![\w])")


def prose(text: str) -> str:
    """The page without what is generated, links' targets, inline code, and blocks of code that tests run."""
    before, _, rest = text.partition(BEGIN)
    text = before + rest.partition(END)[2]
    text = re.sub(r"```.*?```", lambda block: _comments(block[0]), text, flags=re.S)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    return re.sub(r"`[^`\n]*`", "``", text)


def _comments(block: str) -> str:
    """Of a block of code, what it claims in the comments of commands."""
    return "\n".join(re.findall(r"^(?:make|ampnet) .*?(# .*)$", block, re.M)).replace("# ", "")


def unfounded(text: str) -> Iterable[str]:
    """Numbers of the page that rest on nothing, with the words around them."""
    page = prose(text)
    covered = [
        match.span()
        for pattern in (*(claim.says for claim in CLAIMS), *SETTINGS)
        for match in re.finditer(pattern, page)
    ]
    for match in NUMBER.finditer(page):
        if not any(begin <= match.start() and match.end() <= end for begin, end in covered):
            yield page[max(0, match.start() - 30) : match.end() + 30].replace("\n", " ")
