"""Mutated files: a file of lines of JSON, changed at random in one or a few places, as an attacker or a bad disk would.

rng = Random(seed)
mutated(lines, rng)      the bytes of a file that differs from the lines in 1 to 3 places
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any

CANARY = "<script>document.title='ran'</script>"
"""A text that runs if it gets into a page unescaped."""
NASTY: tuple[Any, ...] = (
    CANARY,
    "\"><img src=x onerror=document.title='ran'>",
    "' onload='document.title=1",
    "</title></svg><script>document.title='ran'</script>",
    "\x1b]0;owned\x07",
    "\ud800",
    "",
    "x" * 5_000,
    "$\\frac{",
    None,
    True,
    False,
    0,
    1,
    -1,
    3.5,
    -0.0,
    5e-324,
    1e-300,
    1e300,
    1e308,
    float("nan"),
    float("inf"),
    float("-inf"),
    2**31,
    2**63 - 1,
    2**63,
    -(2**63) - 1,
    10**400,
    [],
    {},
    [[]],
    [None],
    [CANARY],
    {CANARY: 1},
    {"fields": ["instance"], "columns": [[0]]},
    {"fields": ["instance"], "columns": [[[0]]]},
    {"fields": 3, "columns": {}},
    [[0, {"fields": [], "columns": []}]],
    list(range(50)),
)
DEEP = '{"a":' * 60_000 + "1" + "}" * 60_000
PIECES = (
    b"",
    b"\0",
    b"\xff\xfe",
    b"[",
    b"}",
    b'"',
    b"\n",
    b"NaN",
    b"1e999",
    b"-",
    b"\xed\xa0\x80",
    b"9" * 5_000,
    b"{}",
)


def mutated(lines: Sequence[str], rng: Random) -> bytes:
    """Returns the lines as a file, with 1 to 3 mutations."""
    changed = list(lines)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if not changed:
            break
        at = rng.randrange(len(changed))
        kind = rng.random()
        if kind < 0.8:
            changed[at] = _structural(changed[at], rng)
        elif kind < 0.85:
            del changed[at]
        elif kind < 0.9:
            changed.insert(rng.randrange(len(changed) + 1), changed[at])
        elif kind < 0.93:
            other = rng.randrange(len(changed))
            changed[at], changed[other] = changed[other], changed[at]
        elif kind < 0.94:
            changed[at] = DEEP
        else:
            data = _torn("\n".join(changed).encode(errors="surrogatepass"), rng)
            changed = data.decode("utf-8", errors="surrogateescape").split("\n")
    return ("\n".join(changed) + "\n" * (rng.random() < 0.95)).encode("utf-8", errors="surrogateescape")


def _structural(line: str, rng: Random) -> str:
    """Returns the line with one value of its JSON replaced, removed, renamed or doubled."""
    comma = "," if line.endswith(",") else ""
    try:
        data = json.loads(line.removesuffix(","))
    except (ValueError, RecursionError):
        return line
    places = _places(data)
    if not places:
        return line
    holder, key = rng.choice(places)
    kind = rng.random()
    if kind < 0.75:
        holder[key] = rng.choice(NASTY)
    elif kind < 0.85:
        del holder[key]
    elif kind < 0.9 and isinstance(holder, dict):
        holder[str(rng.choice(NASTY))] = holder.pop(key)
    else:
        other, name = rng.choice(places)
        holder[key] = other[name]
    try:
        return json.dumps(data) + comma
    except (ValueError, RecursionError):  # it holds itself
        return line


def _places(data: Any) -> list[tuple[Any, Any]]:
    """Returns all (holder, key) of a JSON value."""
    found: list[tuple[Any, Any]] = []
    waiting = [data]
    while waiting:
        holder = waiting.pop()
        items = holder.items() if isinstance(holder, dict) else enumerate(holder) if isinstance(holder, list) else ()
        for key, value in items:
            found.append((holder, key))
            waiting.append(value)
    return found


def _torn(data: bytes, rng: Random) -> bytes:
    start = rng.randrange(len(data) + 1)
    stop = min(len(data), start + rng.choice((0, 1, 1, 7, 300)))
    return data[:start] + rng.choice(PIECES) + data[stop:] * (rng.random() < 0.8)
