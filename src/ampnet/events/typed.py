"""Typed: JSON from a file, checked against the annotations of a dataclass.

A run's file may come from anywhere, and its fields end up in pages and pictures. So every value is checked once, where
it is read; whatever uses it afterwards can rely on its type:

    parsed(line)                       the JSON of a text; ValueError also for JSON that is nested too deeply
    read(StreamRecord, {...})          the dataclass; ValueError names the field: "metrics.accuracy is 'x'; a number
                                       was expected"

    bool, str        that type; a text can be encoded (no half of a surrogate pair)
    int              0 to 2**63 - 1; a digest may be negative
    float            a number, also NaN; null is NaN. Times (`MOMENTS`) are finite
    States           an object of fields and columns of whole numbers
    tuple, list, dict, dataclass, X | None    by their parts
    Any              JSON at most `DEPTH` levels deep
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from math import nan
from types import NoneType, UnionType
from typing import Any, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

from ampnet.errors import StateError
from ampnet.state import States

D = TypeVar("D")
Check = Callable[[Any], Any]

LARGEST = 2**63 - 1
LATEST = 1e12
"""The largest time and duration, in seconds."""
MOMENTS = frozenset({"time", "start", "starts", "seconds", "began", "ended", "wall"})
SIGNED = frozenset({"digest", "start_ns"})
DEPTH = 32
LONG = 240


class Wrong(ValueError):
    """A value has the wrong type. ``path`` leads to it."""

    def __init__(self, value: Any, wanted: str) -> None:
        self.value, self.wanted, self.path = value, wanted, ""

    def within(self, name: str) -> Wrong:
        """Returns the error with a longer path."""
        self.path = f"{name}.{self.path}" if self.path else name
        return self

    def __str__(self) -> str:
        return f"{shown(self.path)[1:-1] or 'it'} is {shown(self.value)}; {self.wanted} was expected"


def shown(value: Any) -> str:
    """Returns a value of a file for a message: short, on one line, without control characters."""
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list | tuple):
        return "a list"
    text = ascii(value) if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:56]}...{text[-1]}"


def brief(error: Exception) -> str:
    """Returns the text of an error, at most `LONG` characters of it."""
    text = str(error)
    return text if len(text) <= LONG else f"{text[:LONG]}..."


def parsed(text: str) -> Any:
    """Returns the decoded JSON. Raises ValueError for any text that is not JSON."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("JSON that is nested too deeply") from None


def read(kind: type[D], data: Any) -> D:
    """Returns the dataclass of decoded JSON. Raises ValueError that names the field."""
    hint: Any = kind
    found: D = checker(hint)(data)
    return found


@cache
def checker(hint: Any, name: str = "") -> Check:
    """Returns a function that checks and converts a value to this type. ``name``: of the field, for its range."""
    if hint in _PLAIN:
        return _PLAIN[hint]
    if hint is float:
        return _moment if name in MOMENTS else _number
    if hint is int:
        return _integer if name in SIGNED else _count
    if is_dataclass(hint) and isinstance(hint, type):
        return _dataclass(hint)
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return _optional(checker(next(one for one in args if one is not NoneType), name))
    if origin is tuple and args[1:] != (...,):
        return _pair(tuple(checker(one, name) for one in args))
    if origin in (tuple, list):
        return _sequence(checker(args[0], name), origin)
    if origin is dict:
        return _table(_key if args[0] is int else _text, checker(args[1], name))
    raise TypeError(f"no JSON is known for {hint}")


def _fail(value: Any, wanted: str) -> NoReturn:
    raise Wrong(value, wanted)


def _bool(value: Any) -> bool:
    return value if isinstance(value, bool) else _fail(value, "true or false")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        _fail(value, "a text")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            _fail(value, "a text in Unicode")
    return value


def _count(value: Any) -> int:
    return value if type(value) is int and 0 <= value <= LARGEST else _fail(value, "a whole number from 0 to 2**63 - 1")


def _integer(value: Any) -> int:
    return value if type(value) is int and abs(value) <= LARGEST + 1 else _fail(value, "a whole number of 64 bits")


def _number(value: Any) -> float:
    if value is None:
        return nan
    if type(value) is float or (type(value) is int and abs(value) <= LARGEST):
        return float(value)
    _fail(value, "a number")


def _moment(value: Any) -> float:
    fits = type(value) in (int, float) and abs(value) <= LATEST
    return float(value) if fits else _fail(value, "a number of seconds")


def _key(value: Any) -> int:
    text = str(value)
    return int(text) if text.isdecimal() and text.isascii() and len(text) < 19 else _fail(value, "a whole number")


def json_of(value: Any, depth: int = DEPTH) -> Any:
    """Returns decoded JSON that is not too deep, and whose texts can be encoded. Its numbers are unchecked."""
    if depth == 0:
        _fail(value, f"JSON at most {DEPTH} levels deep")
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        return {_text(key): json_of(item, depth - 1) for key, item in value.items()}
    if isinstance(value, list):
        return [json_of(item, depth - 1) for item in value]
    return value


LONGEST_NAME = 100
"""Characters of a state field's name."""


def _states(value: Any) -> States:
    if not isinstance(value, Mapping) or value.keys() != {"fields", "columns"}:
        _fail(value, "an object of fields and columns")
    names = checker(tuple[str, ...])(value["fields"])
    for name in names:
        if not name.isidentifier() or len(name) > LONGEST_NAME:
            _fail(name, "the name of a field")
    columns = value["columns"]
    if not isinstance(columns, list) or not all(isinstance(one, list) for one in columns) or not columns:
        _fail(columns, "a list of columns")
    for column in columns:
        if column and not set(map(type, column)) <= {int}:
            _fail(next(one for one in column if type(one) is not int), "a whole number")
    try:
        return States(names, columns)
    except (StateError, ValueError, OverflowError) as error:
        raise ValueError(f"states that no message can have: {error}") from None


_PLAIN: dict[Any, Check] = {bool: _bool, str: _text, Any: json_of, States: _states}


_FAST: dict[Check, type] = {_count: int, _text: str, _bool: bool}


def _optional(check: Check) -> Check:
    return lambda value: None if value is None else check(value)


def _pair(checks: tuple[Check, ...]) -> Check:
    def pair(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple) or len(value) != len(checks):
            _fail(value, f"a list of {len(checks)}")
        return tuple(check(item) for check, item in zip(checks, value, strict=True))

    return pair


def _sequence(check: Check, kind: type) -> Check:
    def sequence(value: Any) -> Any:
        if not isinstance(value, list | tuple):
            _fail(value, "a list")
        if check in _FAST and value and set(map(type, value)) == {_FAST[check]}:  # a column of a wave: check it once
            for one in {min(value), max(value)} if check is _count else set(value):
                check(one)
            return kind(value)
        return kind(map(check, value))

    return sequence


def _table(key: Check, check: Check) -> Check:
    def table(value: Any) -> dict[Any, Any]:
        if not isinstance(value, Mapping):
            _fail(value, "an object")
        found = {}
        for name, item in value.items():
            try:
                found[key(name)] = check(item)
            except Wrong as error:
                raise error.within(str(name)) from None
        return found

    return table


def _dataclass(kind: Any) -> Check:
    hints = get_type_hints(kind)
    checks = {item.name: checker(hints[item.name], item.name) for item in fields(kind)}
    needed = {one.name for one in fields(kind) if one.default is MISSING and one.default_factory is MISSING}

    def whole(value: Any) -> Any:
        if not isinstance(value, Mapping):
            _fail(value, "an object")
        found = {}
        for name, item in value.items():
            check = checks.get(name)
            if check is None:
                raise ValueError(f"unknown field {shown(name)}; there are {', '.join(checks)}")
            try:
                found[name] = check(item)
            except Wrong as error:
                raise error.within(name) from None
        for name in needed - found.keys():
            raise ValueError(f"there is no field '{name}'")
        return kind(**found)

    return whole
