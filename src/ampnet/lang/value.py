"""Value: one row of a tensor, in a model that is being compiled. Torch functions of it are recorded in its `Trace`.

Its shape and dtype are known, its numbers are not: they differ from message to message. So whatever asks for a number
(``if``, ``int``, ``range``), or writes into it, raises `ModelError` with the line and what to use instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor

from ampnet.lang.proto import Proto
from ampnet.lang.scope import Scope

if TYPE_CHECKING:
    from ampnet.lang.trace import Trace


def meta(row: Tensor) -> Tensor:
    """Returns a meta tensor with a row's shape and dtype."""
    return torch.empty(row.shape, dtype=row.dtype, device="meta")


class Value:
    """One row of a tensor, in a model that is being compiled. Torch functions of it are recorded."""

    __slots__ = ("line", "port", "proto", "row", "scope", "trace")

    def __init__(self, trace: Trace, proto: Proto, port: int, scope: Scope, row: Tensor) -> None:
        self.trace, self.proto, self.port, self.scope, self.row = trace, proto, port, scope, row

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        from ampnet.lang.ops import call

        return call(function, args, kwargs or {})

    def __getattr__(self, name: str) -> Any:
        from ampnet.lang.ops import attribute

        return attribute(self, name)

    def __repr__(self) -> str:
        return f"Value({self.proto.name}: {tuple(self.row.shape)} {self.row.dtype}, for each {self.scope})"

    def __bool__(self) -> bool:
        self.trace.fail(
            "a Python 'if', 'while', 'and', 'or' or 'not' asks for the value of a tensor, which differs from message "
            "to message and is not known while the model is compiled. Control flow is decided by integers of the "
            "instance (choose(...), repeat(..., while_=...)); to pick between two tensors use torch.where"
        )

    def __iter__(self) -> Any:
        self.trace.fail("a Python 'for' goes through a tensor; a value is one row here: use chunk, split or a slice")

    def __len__(self) -> int:
        if not self.row.dim():
            self.trace.fail("len(...) of a tensor without dimensions")
        return int(self.row.shape[0])

    def _asked(self, what: str) -> NoReturn:
        self.trace.fail(f"{what} asks for the number in a tensor, which is not known while the model is compiled")

    def __int__(self) -> int:
        self._asked("int(...)")

    def __float__(self) -> float:
        self._asked("float(...)")

    def __index__(self) -> int:
        self._asked("an index or range(...)")

    def __setitem__(self, index: object, value: object) -> None:
        self.trace.fail(in_place("an assignment to a part of it"))

    __hash__ = object.__hash__


def in_place(what: str) -> str:
    return (
        f"{what} changes a tensor in place. Payloads are shared between messages and never written to: use the version "
        f"that gives a new tensor (h = h + x, torch.cat, torch.where)"
    )
