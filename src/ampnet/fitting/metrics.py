"""Metrics: the names of the metrics that `fit` reports, and their meaning.

    loss, accuracy                    of the validation, or of the training without validation data
    train_loss, valid_accuracy        of the training, of the validation
    mood.loss, train_mood.accuracy    of the loss named "mood", if a model has losses of several names

The names follow from the Loss nodes of a graph, so an unknown name raises an error before the first epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

from ampnet.nodes.loss import Loss
from ampnet.nodes.metrics import PER

if TYPE_CHECKING:
    from ampnet.graph import Graph


def split_name(name: str) -> tuple[str | None, str]:
    """Returns "train", "valid" or None, and the rest of a name: "valid_loss" is ("valid", "loss")."""
    kind, _, rest = name.partition("_")
    return (kind, rest) if kind in ("train", "valid") and rest else (None, name)


def metric_names(graph: Graph) -> list[str]:
    """Returns "loss" and the names of all metrics that a stream of this graph reports."""
    by_name: dict[str, list[str]] = {}
    for node in graph.nodes.values():
        if isinstance(node, Loss):
            by_name.setdefault(node.loss_name, []).extend(m for m in node.metrics if not m.endswith(PER))
    if len(by_name) == 1:
        return list(dict.fromkeys(["loss", *(m for metrics in by_name.values() for m in metrics)]))
    return ["loss", *dict.fromkeys(f"{loss}.{m}" for loss, metrics in by_name.items() for m in ("loss", *metrics))]


def check_metric(name: str, known: Sequence[str] | None, validated: bool) -> None:
    """Raise `ValueError` if there will be no such metric. ``known``: `metric_names`; None: not known yet."""
    kind, bare = split_name(name)
    if kind == "valid" and not validated:
        raise ValueError(f"there is no '{name}': fit was given no validation data")
    if known is not None and bare not in known:
        raise ValueError(_unknown(name, known))


def _unknown(name: str, known: Sequence[str]) -> str:
    bare = name.removeprefix("val_")
    near = [n for n in known if n.endswith(f".{bare}")] or get_close_matches(bare, known, 1)
    if name != bare and near:
        near = [f"valid_{n}" for n in near]
    hint = f". Did you mean {' or '.join(map(repr, near))}?" if near else ""
    return f"metric '{name}' is not reported by any Loss of the graph; there are: {', '.join(known)}{hint}"


def value_of(name: str, loss: float, metrics: Mapping[str, float]) -> float:
    """Returns "loss" or a metric of a stream, by name."""
    if name == "loss":
        return loss
    if name not in metrics:
        raise ValueError(_unknown(name, ["loss", *metrics]))
    return metrics[name]
