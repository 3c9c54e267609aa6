"""Arguments: how the parts of an instance are bound to the parameters of ``forward``.

    def forward(self, tokens, label=None, *, rounds=3): ...

    graph.instance(tokens, label)                           by position
    graph.instance(tokens=tokens, label=label)              by name
    graph.instance({"tokens": tokens, "label": label})      a dict of names: a row of a data set

A graph reads the parts in one order, that of `Arguments.names`, which the example fixes:

    in the example       becomes an input of the graph; an instance that omits it gets the default, if there is one
    not in the example   the default is a constant of the graph; an instance may not give another value
    a dict               each of its items is a part of its own, here 'batch_x' and 'batch_y' for ``forward(batch)``
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from difflib import get_close_matches
from inspect import Parameter
from typing import Any

import numpy as np
from torch import Tensor, nn

from ampnet.errors import AmpnetError, DataError, ModelError
from ampnet.lang.edges import Edges
from ampnet.lang.pyg import from_pyg, is_pyg
from ampnet.lang.ragged import Ragged
from ampnet.lang.spaces import Seq, Space

Path = tuple[str, str | int | None]
"""A parameter of forward, and an item of it: a dict key or an index into ``*args``; None: the argument itself."""


class Signature:
    """The parameters of a model's ``forward``."""

    def __init__(self, model: nn.Module) -> None:
        self.model = type(model).__name__
        self.signature = inspect.signature(model.forward)
        self.parameters = dict(self.signature.parameters)
        self.of_pyg: dict[str, Any] = {"nodes": "nodes", "edges": "edges"}
        """Keyword arguments of `from_pyg`, by which a `torch_geometric.data.Data` is converted."""

    def bind(
        self, args: Sequence[Any], named: Mapping[str, Any], whole: Collection[str] | None = None
    ) -> dict[str, Any]:
        """Returns the arguments by parameter, without defaults: ``*args`` as a tuple, ``**kwargs`` as a dict.

        A single dict or `torch_geometric.data.Data` holds the arguments by name. The dict is itself the argument if
        forward takes one argument and no key resembles its name. ``whole``: the parameters that are dicts, if known.

        Raises `DataError`, which names the missing or unknown arguments.
        """
        if len(args) == 1 and not named:
            (alone,) = args
            if isinstance(alone, Mapping) and not self._is_argument(alone, whole):
                args, named = [], alone
            elif is_pyg(alone):
                args, named = [], self._of_pyg(alone)
        out: dict[str, Any] = {}
        rest = list(args)
        for name, parameter in self.parameters.items():
            if parameter.kind is Parameter.VAR_POSITIONAL:
                out[name], rest = tuple(rest), []
            elif rest and parameter.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD):
                out[name] = rest.pop(0)
        if rest:
            most = len(args) - len(rest)
            raise DataError(f"{self.model} takes {most} argument(s), got {len(args)}. {self._takes()}")
        extra = next((n for n, p in self.parameters.items() if p.kind is Parameter.VAR_KEYWORD), None)
        for name, value in named.items():
            known = name in self.parameters and self.parameters[name].kind not in _VARIABLE
            if known and name in out:
                raise DataError(f"argument '{name}' of {self.model} is given twice, by position and by name")
            if known:
                out[name] = value
            elif extra is not None:
                out.setdefault(extra, {})[name] = value
            else:
                near = get_close_matches(name, [n for n in self.parameters if n not in named], 1)
                hint = f"; did you mean '{near[0]}'?" if near else "."
                raise DataError(f"{self.model} takes no argument '{name}'{hint} {self._takes()}")
        return {name: out[name] for name in self.parameters if name in out}

    def check(self, given: Collection[str], may_lack: Collection[str] = (), positional: int | None = None) -> None:
        """Raise `DataError` for parameters without a default that are not among these."""
        missing = [
            name
            for name, p in self.parameters.items()
            if name not in given and name not in may_lack and p.default is p.empty and p.kind not in _VARIABLE
        ]
        if missing and positional:
            raise DataError(
                f"{self.model} takes {len(given) + len(missing)} argument(s), got {positional}: there is no "
                f"{_listed(missing)}. {self._takes()}"
            )
        if missing:
            raise DataError(f"{self.model} needs {_listed(missing)}, not given. {self._takes()}")

    def call(self, bound: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The positional and keyword arguments of a call of forward."""
        call = self.signature.bind_partial()
        call.arguments.update({name: bound[name] for name in self.parameters if name in bound})
        return call.args, call.kwargs

    def _is_argument(self, given: Mapping[str, Any], whole: Collection[str] | None) -> bool:
        """Whether a single dict is the argument itself, rather than a dict of arguments."""
        names = list(self.parameters)
        if len(names) != 1 or self.parameters[names[0]].kind in _VARIABLE or names[0] in given:
            return False
        if whole is not None:
            return names[0] in whole
        return not any(get_close_matches(str(name), names, 1) for name in given)

    def _of_pyg(self, data: Any) -> dict[str, Any]:
        taken = {name for name, p in self.parameters.items() if p.kind not in _VARIABLE}
        if not taken & {self.of_pyg["nodes"], self.of_pyg["edges"]}:
            raise DataError(
                f"a {type(data).__name__} is converted to arguments by name: 'nodes' (a Seq), 'edges' (Edges) and "
                f"attributes of the whole graph ('y'). {self._takes()}. Write forward(self, nodes, edges, y), or "
                f"give arguments of your own"
            )
        made = from_pyg(data, graph=taken - {self.of_pyg["nodes"], self.of_pyg["edges"]}, **self.of_pyg)
        return {name: value for name, value in made.items() if name in taken}

    def _takes(self) -> str:
        names = [str(p).split(":")[0].split("=")[0] for p in self.parameters.values()]
        return f"Its forward takes: {', '.join(names) or 'nothing'}"


_VARIABLE = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


class Arguments:
    """The parts of an instance, in the order in which a graph reads them. Made from the example."""

    def __init__(self, model: nn.Module, args: Sequence[Any], named: Mapping[str, Any]) -> None:
        self.signature = Signature(model)
        try:
            bound = self.signature.bind(args, named)
            self.signature.check(bound)
        except AmpnetError as error:
            raise ModelError(f"the example does not fit: {error}") from None
        self.whole = {name for name, value in bound.items() if isinstance(value, Mapping) and not self._extra(name)}
        for name in self.whole:
            if not all(isinstance(key, str) for key in bound[name]):
                raise ModelError(f"argument '{name}' of the example is a dict whose keys are not all text")
        self.paths = [(name, item) for name, value in bound.items() for item in _items(value, self._spreads(name))]
        self.example = tuple(_at(bound, path) for path in self.paths)
        self.names = [self._name(path, place) for place, path in enumerate(self.paths)]
        self._learn_pyg()
        self.optional: set[int] = set()
        """Indices of the parts that an instance may omit: labels, in inference."""
        self._plain = all(item is None for _, item in self.paths) and all(
            self.signature.parameters[name].kind is not Parameter.KEYWORD_ONLY for name, _ in self.paths
        )

    def of(self, args: Sequence[Any], named: Mapping[str, Any]) -> Sequence[Any]:
        """Returns the parts of an instance, in order; None for an omitted label."""
        if self._plain and not named and len(args) == len(self.paths) and (len(args) > 1 or not self.may_hold(args)):
            return args
        bound = self.signature.bind(args, named, self.whole)
        lacking = {self.paths[place][0] for place in self.optional} if not args or named or self.may_hold(args) else ()
        by_place = bool(args) and not named and not self.may_hold(args)
        self.signature.check(bound, lacking, len(args) if by_place else None)
        self._refuse_constants(bound)
        out = []
        for place, path in enumerate(self.paths):
            try:
                out.append(_at(bound, path))
            except LookupError:
                out.append(self._default(place))
        return out

    def moved(self, move: Callable[[Tensor], Tensor]) -> Arguments:
        """Returns a copy with the example's tensors moved or cast; its edges refer to the new nodes."""
        made: dict[int, Any] = {}

        def one(given: Any) -> Any:
            if id(given) not in made:
                if isinstance(given, Tensor):
                    made[id(given)] = move(given)
                elif isinstance(given, Space):
                    made[id(given)] = space = object.__new__(type(given))
                    space.__dict__.update({name: one(value) for name, value in given.__dict__.items()})
                elif isinstance(given, Ragged):
                    made[id(given)] = column = copy(given)
                    column.spaces = [one(space) for space in given.spaces]
                elif isinstance(given, Mapping):
                    made[id(given)] = {name: one(value) for name, value in given.items()}
                else:
                    made[id(given)] = given
            return made[id(given)]

        out = copy(self)
        out.example = tuple(map(one, self.example))
        return out

    def nested(self, parts: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the positional and keyword arguments that call forward with these parts."""
        bound: dict[str, Any] = {}
        for (name, item), part in zip(self.paths, parts, strict=True):
            if item is None:
                bound[name] = part
            elif isinstance(item, int):
                bound[name] = (*bound.get(name, ()), part)
            else:
                bound.setdefault(name, {})[item] = part
        return self.signature.call(bound)

    def _learn_pyg(self) -> None:
        """Set the argument names and control columns by which a Data is converted, from the example."""
        graphs = {Seq: "nodes", Edges: "edges"}
        for kind, role in graphs.items():
            found = [name for name, part in zip(self.names, self.example, strict=True) if type(part) is kind]
            if len(found) == 1:
                self.signature.of_pyg[role] = found[0]
        columns = [(n, c) for part in self.example if isinstance(part, Space) for n, c in part._columns.items()]
        self.signature.of_pyg["control"] = [name for name, column in columns if isinstance(column, np.ndarray)]

    def may_hold(self, args: Sequence[Any]) -> bool:
        """Whether a single argument holds all parts."""
        return len(args) == 1 and (isinstance(args[0], Mapping) or is_pyg(args[0]))

    def _default(self, place: int) -> Any:
        name, item = self.paths[place]
        parameter = self.signature.parameters[name]
        if item is None and parameter.default is not parameter.empty:
            return parameter.default
        if place in self.optional:
            return None
        where = f"an item of '{name}'" if item is not None else "an argument"
        raise DataError(f"{self.signature.model} was compiled for {where} '{self.names[place]}', which is not given")

    def _refuse_constants(self, bound: Mapping[str, Any]) -> None:
        """Raise `DataError` for an argument that differs from the constant compiled into the graph."""
        known = {name for name, _ in self.paths}
        for name, value in bound.items():
            if name in known:
                if self._spreads(name):
                    self._refuse_items(name, value)
                continue
            default = self.signature.parameters[name].default
            nothing = isinstance(value, tuple | dict) and not value
            if value is default or nothing or (_is_plain(value) and value == default):
                continue
            raise DataError(
                f"argument '{name}' of {self.signature.model} was not in the example, so the graph was compiled for "
                f"its default, {default!r}. Give it in the example to have it vary with instances"
            )

    def _refuse_items(self, name: str, value: Any) -> None:
        known = [item for of, item in self.paths if of == name]
        items = _items(value, True) if isinstance(value, Mapping | tuple) else []
        more = [item for item in items if item not in known]
        if more:
            listed = ", ".join(str(item) for item in known)
            raise DataError(
                f"'{name}' of {self.signature.model} has an item {more[0]!r} that the example did not have; it had: "
                f"{listed}"
            )
        if name in self.whole and not isinstance(value, Mapping):
            raise DataError(f"argument '{name}' of {self.signature.model} is a {type(value).__name__}, expected a dict")

    def _extra(self, name: str) -> bool:
        return self.signature.parameters[name].kind in _VARIABLE

    def _spreads(self, name: str) -> bool:
        """Whether each item of an argument is a separate part."""
        return self._extra(name) or name in self.whole

    def _name(self, path: Path, place: int) -> str:
        name, item = path
        if item is None:
            return name
        if isinstance(item, int):
            return f"argument{place}"
        return item if self._extra(name) else f"{name}_{item}"


def arguments_of(sample: Any) -> tuple[Any, ...]:
    """Returns the positional arguments of one sample: the items of a tuple or list; anything else is one argument."""
    return tuple(sample) if isinstance(sample, tuple | list) else (sample,)


def _items(value: Any, spread: bool) -> list[Any]:
    if not spread:
        return [None]
    return list(value) if isinstance(value, Mapping) else list(range(len(value)))


def _at(bound: Mapping[str, Any], path: Path) -> Any:
    name, item = path
    return bound[name] if item is None else bound[name][item]


def _is_plain(value: Any) -> bool:
    return isinstance(value, bool | int | float | str | np.integer) and not isinstance(value, Tensor)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
