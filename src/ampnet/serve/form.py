"""Form: the JSON form of an instance: the arguments of ``forward`` by name, without those that only losses use.

    def forward(self, tokens, label): ...          {"tokens": [10, 3, 4, 8]}
    def forward(self, batch): ...                  {"batch": {"x": [0.5, 1.0]}}       the example's batch was a dict
    def forward(self, *layers): ...                {"layers": [[0.5], [1.0]]}

A workload's own records are taken as texts too, where `ampnet predict` takes them: ``"range 3 7 1"``. Their answer is
that of `ampnet predict --json`.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ampnet.errors import AmpnetError, DataError
from ampnet.instance import Instance
from ampnet.lang.edges import Edges
from ampnet.lang.prediction import Prediction
from ampnet.lang.spaces import Space
from ampnet.serve.fields import EdgesOf, Field, argument_field, check_keys

LIMIT = 10_000
"""The maximal number of elements of a sequence, tree or set of edges, and of rounds of a loop."""

Answer = Callable[[Any], Any]
"""Converts what ``forward`` returns to plain data."""
Tell = Callable[[str], tuple[tuple[Any, ...], Answer]]
"""Reads a text: returns arguments of the model, and the conversion of its result."""


class Form:
    """Reads instances of a prediction graph from JSON. See the head of this file."""

    def __init__(self, graph: Prediction, *, limit: int = LIMIT, tell: Tell | None = None, told: str = "") -> None:
        """``tell`` reads texts, which ``told`` describes."""
        self.graph, self.limit, self.tell, self.told = graph, limit, tell, told
        arguments = graph._arguments
        self.places = [place for place in range(len(arguments.names)) if place not in arguments.optional]
        self.fields: dict[int, Field] = {}
        for place in self.places:
            self.fields[place] = argument_field(arguments.example[place], self._needed(place), limit)
        self.unneeded = [arguments.paths[place][0] for place in sorted(arguments.optional)]
        parameter = next(graph.model.parameters(), torch.empty(0))
        self.device = parameter.device

    def _needed(self, place: int) -> Callable[[str], bool]:
        """Returns whether predictions depend on a column: an example without it makes no instance then."""

        def needed(column: str) -> bool:
            example = list(self.graph._arguments.example)
            without = copy(example[place])
            without.__dict__["_columns"] = {n: c for n, c in without._columns.items() if n != column}
            for other, part in enumerate(example):
                if isinstance(part, Edges) and part._nodes is example[place]:
                    example[other] = copy(part)
                    example[other]._nodes = without
            example[place] = without
            try:
                self.graph._made(example, 1)
            except (AmpnetError, AttributeError, KeyError):
                return True
            return False

        return needed

    # -- the tree of names

    def _tree(self, leaf: Callable[[int], Any]) -> dict[str, Any]:
        """Returns something for each argument, in the nesting of the JSON object."""
        out: dict[str, Any] = {}
        arguments = self.graph._arguments
        for place in self.places:
            name, item = arguments.paths[place]
            if item is None:
                out[name] = leaf(place)
            elif isinstance(item, int):
                out.setdefault(name, []).append(leaf(place))
            elif name in arguments.whole:
                out.setdefault(name, {})[item] = leaf(place)
            else:
                out[item] = leaf(place)
        return out

    def schema(self) -> dict[str, Any]:
        """Returns the JSON schema of an instance given by its arguments."""
        return _schema(self._tree(lambda place: self.fields[place]))

    def shown(self) -> dict[str, Any]:
        """Returns the example that the model was compiled with."""
        return self._tree(lambda place: self.fields[place].shown())

    # -- reading

    def read(self, given: Any) -> tuple[Instance, Answer]:
        """Returns the instance of a JSON value, and the conversion of its result. Raises `DataError`."""
        if isinstance(given, str):
            return self._told(given)
        if not isinstance(given, dict):
            texts = f"a text ({self.told}) or " if self.tell is not None else ""
            kind = "a list" if isinstance(given, list) else "null" if given is None else f"{given!r:.40}"
            raise DataError(f"expected {texts}an object with the arguments of the model, got {kind}")
        found: dict[int, Any] = {}
        self._walk(self._tree(lambda place: place), given, "", found)
        example = self.graph._arguments.example
        for place, value in found.items():
            like = example[place]
            if isinstance(self.fields[place], EdgesOf) and isinstance(like, Edges):
                found[place] = value(found[next(i for i, part in enumerate(example) if part is like._nodes)])
        return self._placed(self.graph._made([found.get(place) for place in range(len(example))], 1)), plain

    def _walk(self, wanted: dict[str, Any], given: dict[str, Any], path: str, found: dict[int, Any]) -> None:
        """Read the arguments of a nest of names into ``found``, by place."""
        check_keys(given, [*wanted], path, () if path else self.unneeded)
        for name, at in wanted.items():
            value, where = given[name], f"{path}.{name}" if path else name
            if isinstance(at, dict):
                if not isinstance(value, dict):
                    raise DataError(f"{where}: expected an object with {', '.join(at)}")
                self._walk(at, value, where, found)
            elif isinstance(at, list):
                if not isinstance(value, list) or len(value) != len(at):
                    raise DataError(f"{where}: expected a list of {len(at)} items")
                for i, (place, one) in enumerate(zip(at, value, strict=True)):
                    found[place] = self.fields[place].read(one, f"{where}[{i}]")
            else:
                found[at] = self.fields[at].read(value, where)

    def _told(self, text: str) -> tuple[Instance, Answer]:
        if self.tell is None:
            raise DataError("expected an object with the arguments of the model, got a text")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise DataError("the text has a half of a surrogate pair, which is no character") from None
        arguments, answer = self.tell(text)
        for part in arguments:
            size = len(part) if isinstance(part, Space) else part if isinstance(part, int) else 0
            if size > self.limit:
                raise DataError(f"{size:,} elements or rounds; at most {self.limit:,} are taken")
        return self._placed(self.graph.take(arguments)), answer

    def _placed(self, instance: Instance) -> Instance:
        """Returns the instance on the device of the weights."""
        if self.device.type == "cpu":
            return instance
        feeds = {
            name: given if given.payload is None else replace(given, payload=given.payload.to(self.device))
            for name, given in instance.feeds.items()
        }
        made = replace(instance, feeds=feeds)
        made._memo.update(instance._memo)
        return made


def plain(result: Any) -> Any:
    """Returns what ``forward`` returns as lists, objects and numbers."""
    if isinstance(result, Tensor):
        return result.tolist()
    if isinstance(result, dict):
        return {str(name): plain(value) for name, value in result.items()}
    if isinstance(result, tuple) and hasattr(result, "_fields"):
        return {name: plain(value) for name, value in zip(result._fields, result, strict=True)}
    return [plain(value) for value in result] if isinstance(result, list | tuple) else result


def _schema(nest: Any) -> dict[str, Any]:
    """Returns the JSON schema of a nest of fields."""
    if isinstance(nest, Field):
        return nest.schema()
    if isinstance(nest, list):
        items = [_schema(one) for one in nest]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
    properties = {name: _schema(one) for name, one in nest.items()}
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
