"""PyG: converts a `torch_geometric.data.Data` to the arguments of a model. Does not import the library.

    Data(x=[n, 16], edge_index=[2, e], edge_attr=[e, 4], y=[1, 3], z=[n])

    nodes   Seq(x=..., z=...)                    a column for each attribute with a row per node
    edges   Edges(nodes, edge_index[0], edge_index[1], edge_attr=...)       likewise, with a row per edge
    y       tensor [3]                           of the whole graph: PyG's leading dimension of 1 is dropped

Tensors are payload. Attributes named in ``control`` become integer columns, which decide where messages go (an edge
type that `choose` reads).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from ampnet.errors import DataError
from ampnet.lang.edges import Edges
from ampnet.lang.spaces import Seq


def is_pyg(given: Any) -> bool:
    """Whether this is an object of torch_geometric."""
    return type(given).__module__.startswith("torch_geometric.")


def from_pyg(
    data: Any,
    *,
    nodes: str = "nodes",
    edges: str = "edges",
    graph: Collection[str] = (),
    control: Collection[str] = (),
) -> dict[str, Any]:
    """Returns the arguments in a `torch_geometric.data.Data`, by name: ``nodes``, ``edges``, and graph attributes.

    ``nodes`` and ``edges`` are the names of the `Seq` and the `Edges`. ``graph`` names attributes of the whole graph;
    it is needed if such an attribute has as many rows as there are nodes, like ``y`` of a single atom. ``control``
    names attributes that decide control flow. Attributes that are neither tensors nor numbers (a SMILES string) are
    omitted unless ``graph`` names them.
    """
    if not hasattr(data, "keys") or not hasattr(data, "num_nodes") or hasattr(data, "node_types"):
        raise DataError(f"a {type(data).__name__} is not a graph of one kind of nodes; from_pyg takes a Data")
    if hasattr(data, "to_data_list"):
        raise DataError(
            "this is a Batch of several graphs, and instances are single graphs, which are batched by the runtime: "
            "give the data set itself, or batch.to_data_list()"
        )
    count, names = data.num_nodes, list(data.keys() if callable(data.keys) else data.keys)
    if data.edge_index is None:
        raise DataError(f"{data!r} has no edge_index")
    source, target = data.edge_index.tolist()
    of_nodes: dict[str, Any] = {}
    of_edges: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    for name in names:
        value = data[name]
        if name in ("edge_index", "num_nodes") and name not in graph:
            continue
        rows = value.shape[0] if isinstance(value, Tensor) and value.dim() else None
        if name not in graph and rows == len(source) and (name.startswith("edge_") or rows != count):
            of_edges[name] = _column(name, value, control)
        elif name not in graph and rows == count and not name.startswith("edge_"):
            of_nodes[name] = _column(name, value, control)
        elif isinstance(value, Tensor):
            whole = value.squeeze(0) if rows == 1 else value
            rest[name] = int(whole) if name in control else whole
        elif name in graph or isinstance(value, int):
            rest[name] = value
    if not of_nodes:
        raise DataError(f"{data!r} has no attribute with a row for each of its {count} nodes, such as x")
    elements = Seq(**of_nodes)
    return {nodes: elements, edges: Edges(elements, source, target, **of_edges), **rest}


def _column(name: str, value: Tensor, control: Collection[str]) -> Any:
    if name not in control:
        return value
    if value.dtype.is_floating_point or value.dtype == torch.bool or value.dim() > 1:
        raise DataError(f"'{name}' is {value.dtype} {tuple(value.shape)}; control flow is decided by whole numbers")
    return value.numpy(force=True)
