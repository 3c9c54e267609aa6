"""Convert: plain data (a row of a data set: lists, numbers, arrays, dicts) to the types of the example.

    in the example              plain data                                  becomes
    a tensor                    3, [0.5, 1.0], an array                     a tensor of the dtype compiled for
    Seq(tensor)                 [7, 2, 9], an array, a tensor               Seq(tensor)
    Seq([0, 1]), control        [2, 0, 1], an array                         Seq([2, 0, 1])
    Seq([tensor, tensor])       [[7, 2], [9]]                               a sequence for each element
    Seq(word=..., tag=...)      {"word": [...], "tag": [...]}               Seq(word=..., tag=...)
    Seq(words=[tensor, ...])    {"words": [[7, 2], [9]]}                    Seq(words=[tensor, tensor])
    Edges(nodes, ...)           {"source": ..., "target": ..., ...}         Edges(the instance's nodes, ...)
                                [[0, 1], [1, 0]], as PyG's edge_index
    Tree(parents, ...)          {"parents": ..., ...}                       Tree(parents, ...)

The example decides the type, so nothing is guessed. Payload (a tensor) never becomes control. Values that already have
the right type are passed unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ampnet.errors import DataError
from ampnet.lang.edges import Edges
from ampnet.lang.ragged import Ragged
from ampnet.lang.spaces import Seq
from ampnet.lang.tree import Tree

DtypeOf = Callable[[str | None], torch.dtype | None]
"""Maps a column (None: the argument itself) to the dtype it was compiled for; None if the graph does not read it."""


def convert(given: Any, like: Any, dtype_of: DtypeOf, nodes: Any = None) -> Any:
    """Returns plain data as an argument of the example's type; data without a known conversion are returned unchanged.

    ``nodes``: the instance's nodes, if the argument is `Edges`. Raises `DataError` for data that do not fit.
    """
    if isinstance(like, Tensor):
        return _tensor(given, dtype_of(None), like) if _is_numbers(given) else given
    if isinstance(like, Tree) and isinstance(given, Mapping) and "parents" in given:
        return _tree(given, like, dtype_of)
    if isinstance(like, Edges) and nodes is not None:
        return _edges(given, like, dtype_of, nodes)
    if isinstance(like, Seq) and isinstance(given, Mapping):
        return Seq(**_columns(given, like, dtype_of))
    if isinstance(like, Seq) and like._plain and (_is_numbers(given) or isinstance(given, Tensor)):
        return Seq(_column("value", given, like, dtype_of))
    return given


def _tree(given: Mapping[str, Any], like: Tree, dtype_of: DtypeOf) -> Tree:
    columns = _columns({n: c for n, c in given.items() if n != "parents"}, like, dtype_of)
    parts: dict[str, Any] = {"leaves": {}, "branches": {}}
    for name, where in like._given.items():
        if name in columns:
            parts[where][name] = columns.pop(name)
    return Tree(given["parents"], **parts, **columns)


def _edges(given: Any, like: Edges, dtype_of: DtypeOf, nodes: Seq) -> Any:
    if isinstance(given, Mapping) and "source" in given and "target" in given:
        rest = {name: column for name, column in given.items() if name not in ("source", "target")}
        return Edges(nodes, given["source"], given["target"], **_columns(rest, like, dtype_of))
    if isinstance(given, Sequence | np.ndarray | Tensor) and len(given) == 2:
        source, target = given.tolist() if isinstance(given, Tensor) else given
        return Edges(nodes, _ends(source), _ends(target))
    return given


def _ends(given: Any) -> Any:
    return np.asarray(given, dtype=np.int64) if isinstance(given, list) and not given else given


def _columns(given: Mapping[str, Any], like: Any, dtype_of: DtypeOf) -> dict[str, Any]:
    return {name: _column(name, column, like, dtype_of) for name, column in given.items()}


def _column(name: str, given: Any, like: Any, dtype_of: DtypeOf) -> Any:
    example = like._columns.get(name)
    if isinstance(example, Ragged) and isinstance(given, list | tuple | np.ndarray) and len(example):
        return [convert(one, example[0], lambda column: None) for one in given]
    if isinstance(example, Tensor) and _is_numbers(given):
        return _tensor(given, dtype_of(name), example)
    return given


def _is_numbers(given: Any) -> bool:
    """Whether this is a number or a nested list of numbers, and not a tensor."""
    if isinstance(given, list | tuple):
        return not given or _is_numbers(given[0])
    return isinstance(given, bool | int | float | np.number | np.bool_ | np.ndarray)


def _tensor(given: Any, dtype: torch.dtype | None, like: Tensor) -> Tensor:
    try:
        made = torch.as_tensor(np.asarray(given) if isinstance(given, list | tuple) else given)
    except (TypeError, ValueError) as error:
        raise DataError(f"no tensor can be made of it: {error}") from None
    wanted = like.dtype if dtype is None else dtype
    if made.numel() and made.is_floating_point() and not wanted.is_floating_point:
        raise DataError(f"it has fractions ({made.dtype}), and the model was compiled for {wanted}")
    return made.to(wanted)
