"""Options of the command line for the placement of nodes, the memory of workers, and replicas.

    --workers N|auto  --affinity FILE|auto  --memory-per-worker 1.5GB  --replicate NAMES|NODE=N,...  --tile NODE=N,...

The file is a JSON object that maps nodes, by name or pattern, to worker numbers. Errors in it are reported before any
work starts, with the file and the entry:

    ampnet train list-reduction: --affinity: where.json, entry "cell*": 2 is no worker; there are 2, numbered from 0
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ampnet.cli.options import Parser, file_to_read, pairs, processes, whole
from ampnet.errors import nearest

if TYPE_CHECKING:
    from ampnet.graph import Graph

Affinity = Mapping[str, int] | Literal["auto"]


def number(text: str) -> int | Literal["auto"]:
    """Parses a positive number, or auto."""
    return "auto" if text == "auto" else whole(1)(text)


def workers(text: str) -> int | Literal["auto"]:
    """Parses a number of workers or replicas, or auto."""
    return "auto" if text == "auto" else processes(text)


def cluster(text: str) -> str:
    """Parses the address of a Ray cluster."""
    if text not in ("auto", "local") and not re.fullmatch(r"(ray://)?[\w.:\[\]-]+", text):
        raise argparse.ArgumentTypeError(
            f"'{text}' is no address of a Ray cluster: give auto, HOST:PORT or ray://HOST:PORT"
        )
    return text


def crowded(workers: int | Literal["auto"] | None) -> str | None:
    """Returns a warning if there are more workers than cores, else None."""
    cores = len(os.sched_getaffinity(0))
    if not isinstance(workers, int) or workers <= cores:
        return None
    return (
        f"{workers} workers on {cores} core{'' if cores == 1 else 's'}: they take turns on the cores, so training is "
        f"not faster than with --workers {cores}, usually slower, and each worker is a process with its own memory"
    )


def copies(text: str) -> tuple[str, ...] | dict[str, int]:
    """Parses names of nodes, separated by commas; or nodes with a number of copies each."""
    if "=" in text:
        return pairs(whole(2))(text)
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    if not found:
        raise argparse.ArgumentTypeError("no name in it; write nodes like cell,embedding, or cell=2")
    return found


def size(text: str) -> int:
    """Parses a number of bytes: ``1500000000``, ``800M``, ``1.5GB``."""
    found = re.fullmatch(r"\s*([\d.]+)\s*([kMGT]?)i?[bB]?\s*", text)
    try:
        count = float(found[1]) * _UNITS[found[2]] if found else 0.0
    except ValueError:
        count = 0.0
    if not 1 <= count <= 2**63:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write bytes like 800M or 1.5GB")
    return int(count)


_UNITS = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def file(text: str) -> Path | Literal["auto"]:
    """Parses the path of an affinity file, or auto."""
    return "auto" if text == "auto" else file_to_read(text)


def affinity_of(parser: Parser, graph: Graph, workers: int, where: Path | Literal["auto"]) -> Affinity:
    """Returns the affinity of the file, checked against the graph."""
    if where == "auto":
        return "auto"
    try:
        return _read(where, graph, workers)
    except ValueError as error:
        parser.error(f"--affinity: {where}{error}")


LARGEST = 10_000_000
"""The maximal number of bytes of an affinity file."""


def _read(path: Path, graph: Graph, workers: int) -> dict[str, int]:
    from ampnet.events.typed import shown

    if path.stat().st_size > LARGEST:
        raise ValueError(f" has more than {LARGEST:,} bytes; write one object of nodes and their workers")
    try:
        found = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_once)
    except json.JSONDecodeError as error:
        raise ValueError(f", line {error.lineno}: this is not JSON ({error.msg})") from None
    except UnicodeDecodeError:
        raise ValueError(" is not text; write JSON in UTF-8") from None
    except RecursionError:
        raise ValueError(" is nested too deeply; write one object of nodes and their workers") from None
    except _Twice:
        raise
    except ValueError:
        raise ValueError(" is not JSON that can be used: a number has thousands of digits") from None
    if not isinstance(found, dict):
        raise ValueError(' holds no object; write nodes and their workers, like {"embedding": 0, "cell*": 1}')
    for name, worker in found.items():
        if isinstance(worker, bool) or not isinstance(worker, int) or not 0 <= worker < workers:
            there = f"there are {workers}, numbered from 0"
            raise ValueError(f", entry {json.dumps(name)}: {shown(worker)} is no worker; {there}")
        known = {*graph.nodes, *map(graph.called, graph.nodes)}
        if not any(name == node or fnmatchcase(node, name) for node in known):
            raise ValueError(f", entry {json.dumps(name)}: no node is called that; {nearest(name, graph.nodes)}")
    return found


class _Twice(ValueError):
    """An entry is there twice."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise _Twice(f", entry {json.dumps(name)}: it is there twice")
        found[name] = value
    return found
