"""Family: a value for each element of a sequence, a tree or a set of edges.

It is not a tensor: its number of rows differs between instances. Combinators operate on it: `each` applies a function
to every element, `reduce` returns one value; ``family[i]`` is one of its elements, by an integer of the instance.
Anything else raises `ModelError` at the line that tries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

from torch import Tensor

from ampnet.errors import ModelError
from ampnet.lang.line import here

_TOGETHER = {
    "T", "mT", "cat", "concat", "conv1d", "cummax", "cumsum", "flip", "permute", "reshape", "roll", "sort", "stack",
    "topk", "transpose", "unfold", "unsqueeze", "view",
}  # fmt: skip
"""Functions of a tensor that need all its rows at once."""


class Family:
    """A value for each element of a space."""

    @property
    def _over(self) -> str:
        """Describes the space of its elements, for error messages."""
        raise NotImplementedError

    def _refuse(self, what: str) -> NoReturn:
        hint = ""
        if what.removeprefix("torch's ").strip("'.") in _TOGETHER:
            hint = "; whole(module, family) gives a module all of them as one tensor [elements, ...]"
        raise ModelError(
            f"{what} is given a value that there is for each element of {self._over}, outside of its scope. "
            f"each(function, family) works on the elements; reduce(family, 'sum') makes one value of them{hint}",
            here(),
        )

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        flat = [*args, *(kwargs or {}).values()]
        flat += [item for arg in flat if isinstance(arg, list | tuple) for item in arg]
        mine = next(a for a in flat if isinstance(a, Family))
        mine._refuse(f"torch's {getattr(function, '__name__', 'function')}")

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and hasattr(Tensor, name):
            self._refuse(f"'.{name}'")
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def __bool__(self) -> bool:
        self._refuse("a Python 'if'")

    def __iter__(self) -> Any:
        self._refuse("a Python 'for'")

    def __len__(self) -> int:
        raise ModelError(
            f"len(...) asks for the number of elements of {self._over}, which differs from instance to instance; the "
            f".length of a Seq, Tree or Edges is that number, as an integer of the instance",
            here(),
        )

    def __getitem__(self, index: object) -> Any:
        self._refuse("an index")


def _refused(name: str) -> Callable[..., Any]:
    def refuse(self: Family, *others: object) -> Any:
        self._refuse(f"'{name}'")

    return refuse


for _name, _sign in {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "matmul": "@", "pow": "**", "floordiv": "//", "mod": "%",
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
}.items():  # fmt: skip
    setattr(Family, f"__{_name}__", _refused(_sign))
    if _name not in ("lt", "le", "gt", "ge"):
        setattr(Family, f"__r{_name}__", _refused(_sign))
for _name in ("neg", "abs"):
    setattr(Family, f"__{_name}__", _refused(_name))
