"""Options of the command line that say where nodes run: ``--workers N|auto``, ``--affinity FILE|auto``, ``--pin``, and
which are replicated.

The file is a JSON object, nodes by name or pattern and the number of their worker. What is wrong with it is said before
any work starts, with the file and the entry:

    ampnet train list-reduction: --affinity: where.json, entry "cell*": 2 is no worker; there are 2, numbered from 0
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from ampnet.cli.options import Parser, file_to_read, whole
from ampnet.graph import Graph

Affinity = Mapping[str, int] | Literal["auto"]


def number(text: str) -> int | Literal["auto"]:
    """How many workers."""
    return "auto" if text == "auto" else whole(1)(text)


def names(text: str) -> tuple[str, ...]:
    """Names of nodes, parted by commas."""
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    if not found:
        raise argparse.ArgumentTypeError("no name in it; write nodes like cell,embedding")
    return found


def file(text: str) -> Path | Literal["auto"]:
    """Where it is written which node goes where."""
    return "auto" if text == "auto" else file_to_read(text)


def settle(
    parser: Parser, graph: Graph, workers: int | Literal["auto"], where: Path | Literal["auto"]
) -> tuple[int, Affinity]:
    """The number of workers, and what the file says, checked against the graph.

    One worker for each core, but no more than there are nodes worth one: those of matrix products.
    """
    heavy = sum(node.saturates for node in graph.nodes.values())
    count = max(1, min(len(os.sched_getaffinity(0)), heavy)) if workers == "auto" else workers
    if where == "auto":
        return count, "auto"
    try:
        return count, _read(where, graph, count)
    except ValueError as error:
        parser.error(f"--affinity: {where}{error}")


def _read(path: Path, graph: Graph, workers: int) -> dict[str, int]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_once)
    except json.JSONDecodeError as error:
        raise ValueError(f", line {error.lineno}: this is not JSON ({error.msg})") from None
    except UnicodeDecodeError:
        raise ValueError(" is not text; write JSON in UTF-8") from None
    if not isinstance(found, dict):
        raise ValueError(' holds no object; write nodes and their workers, like {"embedding": 0, "cell*": 1}')
    for name, worker in found.items():
        if isinstance(worker, bool) or not isinstance(worker, int) or not 0 <= worker < workers:
            there = f"there are {workers}, numbered from 0"
            raise ValueError(f', entry "{name}": {json.dumps(worker)} is no worker; {there}')
        known = {*graph.nodes, *map(graph.called, graph.nodes)}
        if not any(name == node or fnmatchcase(node, name) for node in known):
            raise ValueError(f', entry "{name}": no node is called that; there are {", ".join(graph.nodes)}')
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f', entry "{name}": it is there twice')
        found[name] = value
    return found
