"""Nest: values in nested tuples, lists and dictionaries, as functions take and return them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn


def leaves(nest: Any) -> Iterator[Any]:
    """Yields the values of a nest, in order."""
    if isinstance(nest, tuple | list):
        for item in nest:
            yield from leaves(item)
    elif isinstance(nest, dict):
        for item in nest.values():
            yield from leaves(item)
    else:
        yield nest


def rebuild(nest: Any, values: Iterator[Any]) -> Any:
    """Returns the same nest with other values."""
    if isinstance(nest, tuple) and hasattr(nest, "_fields"):
        return type(nest)(*(rebuild(item, values) for item in nest))
    if isinstance(nest, tuple | list):
        return type(nest)(rebuild(item, values) for item in nest)
    if isinstance(nest, dict):
        return {name: rebuild(item, values) for name, item in nest.items()}
    return next(values)


def shape(nest: Any) -> Any:
    """Returns the structure of a nest without its values, for comparison."""
    if isinstance(nest, tuple | list):
        return tuple(shape(item) for item in nest)
    if isinstance(nest, dict):
        return {name: shape(item) for name, item in nest.items()}
    return None


def along(function: Callable[..., Any], ends: list[Any], edge: Callable[[], Any]) -> Any:
    """Returns the message of an edge: ``function`` of the values at its ends, and of the edge if it takes one more."""
    if takes(function, len(ends)):
        return function(*ends)
    if len(ends) == 2 and takes(function, 1) and not takes(function, 3):
        return function(ends[0])
    return function(*ends, edge())


def takes(function: Callable[..., Any], count: int) -> bool:
    """Whether a function can be called with ``count`` positional arguments."""
    if isinstance(function, nn.Module):
        function = function.forward
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:  # a built-in without a signature
        return count == 1
    return True
