"""Plain data to JSON and back: dicts with text keys, lists, texts, numbers, booleans, None.

Numbers come back to the bit: integers of any size, floats by their shortest exact text, NaN and infinities as Python's
``json`` spells them. A tuple comes back as a list. Everything else is refused when it is written, with its place:

    data.nodes.cell.rate: a Tensor cannot be written; give a number, text, list or dict
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ampnet.errors import CheckpointError, a

DEPTH = 64
"""The deepest nesting."""


def dumps(data: Mapping[str, Any], name: str = "data") -> bytes:
    """Returns the JSON text. Raises `CheckpointError` with the place of a value that JSON does not have."""
    if fault := _fault(data, name):
        raise CheckpointError(fault)
    try:
        return json.dumps(data, separators=(",", ":"), default=dict).encode()
    except ValueError as error:  # an integer of thousands of digits
        raise CheckpointError(f"{name}: {error}") from error


def loads(data: bytes, path: Path) -> Any:
    """Returns the data of a JSON text. Raises `CheckpointError`; ``path`` is named in it."""
    try:
        found = json.loads(data.decode("utf-8"))
    except RecursionError:
        raise CheckpointError(f"{path}: JSON nested deeper than {DEPTH} levels") from None
    except ValueError as error:  # bad UTF-8 and bad JSON
        raise CheckpointError(f"{path}: not JSON: {error}") from error
    if fault := _fault(found, ""):
        raise CheckpointError(f"{path}: {fault}")
    return found


def _fault(data: Any, name: str) -> str | None:
    """Returns what is wrong with the first value that cannot be written. Not recursive: any depth is examined."""
    todo: list[tuple[Any, str, int]] = [(data, name, 1)]
    while todo:
        value, place, depth = todo.pop()
        if depth > DEPTH:
            return f"{place[:80]}...: nested deeper than {DEPTH} levels"
        if isinstance(value, Mapping):
            for key in value:
                if not isinstance(key, str):
                    return f"{place}: the key {key!r} is {a(type(key).__name__)}; keys are texts"
            todo += [(item, f"{place}.{key}", depth + 1) for key, item in value.items()]
        elif isinstance(value, (list, tuple)):
            todo += [(item, f"{place}[{i}]", depth + 1) for i, item in enumerate(value)]
        elif not (value is None or isinstance(value, (str, int, float))):
            return f"{place}: {a(type(value).__name__)} cannot be written; give a number, text, list or dict"
    return None
