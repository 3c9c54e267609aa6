"""Settings and facts from a file: each value has the type and range that its field is annotated with.

    checked(MnistSettings, {"hidden": 100, ...})      the settings; fields that are missing have their defaults
    converted(Mapping[str, int], {"cell": 2})         one value, by a type

JSON has no tuples: a list is accepted for one. A value that does not fit is a `ValueError` that names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from math import isfinite
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from ampnet.errors import nearest
from ampnet.experiments.settings import Option, Training, option_of

S = TypeVar("S", bound=Training)
LARGEST = 2**63 - 1
LONGEST = 100
"""Characters of an unknown name that are compared with the known ones."""


def checked(kind: type[S], data: Any) -> S:
    """Returns the settings. Raises `ValueError` for unknown names, wrong types and numbers out of range."""
    if not isinstance(data, Mapping):
        raise ValueError(f"the settings are {shown(data)} and no JSON object")
    hints, defaults = get_type_hints(kind), kind()
    names = [item.name for item in fields(kind)]
    found = {}
    for name, value in data.items():
        if name not in names:
            raise ValueError(f"unknown setting {shown(name)}; {nearest(name[:LONGEST], names)}")
        try:
            found[name] = converted(hints[name], value)
        except ValueError as error:
            raise ValueError(f"setting '{name}' is {error}") from None
        if found[name] != getattr(defaults, name) and not _within(found[name], option_of(kind, name)):
            raise ValueError(f"setting '{name}' is {shown(value)}, which is out of range")
    return kind(**found)


def converted(hint: Any, value: Any) -> Any:
    """Returns a value of JSON as this type. Raises `ValueError`: "'x' and no int"."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        for one in args:
            try:
                return converted(one, value)
            except ValueError:
                continue
    elif origin is Literal:
        if type(value) is str and value in args:
            return value
    elif origin in (tuple, list):
        if isinstance(value, list):
            return origin(converted(args[0], item) for item in value)
    elif isinstance(origin, type) and issubclass(origin, Mapping):
        if isinstance(value, dict):
            return {key: converted(args[1], item) for key, item in value.items()}
    elif hint is int:
        if type(value) is int and abs(value) <= LARGEST:
            return value
    elif hint is float:
        if type(value) in (int, float) and abs(value) <= LARGEST and isfinite(value):
            return float(value)
    elif type(value) is hint or (value is None and hint is NoneType):
        return value
    raise ValueError(f"{shown(value)} and no {_name(hint)}")


def shown(value: Any) -> str:
    """Returns a value of a file for a message: short, on one line."""
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _within(value: Any, option: Option) -> bool:
    """Whether the numbers of a setting are in the range of its option."""
    if isinstance(value, Mapping):
        return all(_within(item, option) for item in value.values())
    if isinstance(value, float):
        low, high = value > 0 or (option.within == "share" and value == 0), option.within == "positive" or value <= 1
        return low and high and not (option.within == "share" and value == 1)
    return isinstance(value, bool) or not isinstance(value, int) or value >= option.least


def _name(hint: Any) -> str:
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(map(_name, args))
    if origin is Literal:
        return " or ".join(map(repr, args))
    if origin in (tuple, list):
        return f"list of {_name(args[0])}"
    if origin is not None:
        return f"object of {_name(args[1])}"
    return "None" if hint is NoneType else str(hint.__name__)
