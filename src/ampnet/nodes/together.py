"""Together: functions that were written for one row, computed for many rows at once.

    vmap        `torch.func.vmap`: right for any function, and slow: every call inside goes through its dispatcher
    as it is    the function is given all rows, ``[n, ...]``: right for most functions of torch, and for modules made
                of them, which treat the first dimension as a batch
    as a batch  rows ``[1, ...]``, which were written as batches of one: given as one batch ``[n, ...]``

Which of them is right is found once, by trying: the function is given rows of random numbers (a module also random
weights: those of a new module are often zero, and would hide that rows are mixed) in both ways. Only if all results
agree is the faster way taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ampnet.errors import PayloadError

Function = Callable[..., Any]


def rows_at_once(function: Function, operands: Sequence[Tensor], mapped: Sequence[bool]) -> Function:
    """A function of one row of each operand, as a function of all rows: itself, or its `torch.func.vmap`.

    ``operands``: examples, all rows of each; where ``mapped`` is False, a constant.
    """
    slow = torch.func.vmap(function, in_dims=tuple(0 if rows else None for rows in mapped))
    examples = [x for x, rows in zip(operands, mapped, strict=True) if rows]
    constant = [x for x, rows in zip(operands, mapped, strict=True) if not rows]
    random = torch.Generator().manual_seed(0)
    made = iter(_trial(examples, [tuple(x.shape) for x in constant], random))
    given = [next(made) if rows else x for x, rows in zip(operands, mapped, strict=True)]
    return function if _agree(function, slow, given) else slow


_ROWS, _NUMBERS = 130, 2**20
"""At most in a trial."""


def _trial(rows: Sequence[Tensor], shapes: Sequence[tuple[int, ...]], random: torch.Generator) -> list[Tensor]:
    """Rows like these with random numbers, as many as no dimension has; many, for a function may ask how many."""
    taken = {n for x in rows for n in x.shape[1:]} | {n for shape in shapes for n in shape}
    most = _NUMBERS // (1 + sum(x[:1].numel() for x in rows))
    count = next(n for n in range(max(3, min(_ROWS, most)), 10_000) if n not in taken)
    return [_random((count, *x.shape[1:]), x, random) for x in rows]


def _random(shape: Sequence[int], like: Tensor, random: torch.Generator) -> Tensor:
    made = (
        torch.randn(shape, generator=random) if like.is_floating_point() else torch.randint(2, shape, generator=random)
    )
    return made.to(like.device, like.dtype)


_SCALES = (1.0, 1e-3, 30.0, 1e4)
"""Sizes of the random numbers: a function may mix rows only where they are large (a norm that is clipped), or small."""


def _agree(function: Function, slow: Function, given: Sequence[Any]) -> bool:
    return all(_agree_at(scale, function, slow, given) for scale in _SCALES)


def _agree_at(scale: float, function: Function, slow: Function, given: Sequence[Any]) -> bool:
    def scaled(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        return x * scale if x.is_floating_point() else x.clone()

    with torch.no_grad():
        try:
            want, got = (f(*map(scaled, given)) for f in (slow, function))
        except Exception:
            return False
    return _same(got, want)


def _same(got: Any, want: Any) -> bool:
    if isinstance(want, Tensor):
        if not isinstance(got, Tensor) or got.shape != want.shape or got.dtype != want.dtype:
            return False
        tolerance = 1e-2 if want.dtype in (torch.bfloat16, torch.float16) else 1e-4
        slack = tolerance
        if want.is_floating_point() and want.numel():
            slack *= max(1.0, float(want.nan_to_num(0, 0, 0).abs().max()))
        return torch.allclose(got, want, rtol=tolerance, atol=slack, equal_nan=True)
    if isinstance(want, tuple | list):
        return type(got) is type(want) and len(got) == len(want) and all(map(_same, got, want))
    if isinstance(want, dict):
        return isinstance(got, dict) and got.keys() == want.keys() and all(_same(got[k], want[k]) for k in want)
    return bool(got == want)


# -- modules


class Places:
    """The places of a module's parameters: `call` computes with other tensors in them.

    What `torch.func.functional_call` does, which looks for all of them at every call.
    """

    def __init__(self, module: nn.Module) -> None:
        names = {id(p): name for name, p in module.named_parameters()}
        self._at = [
            (inner._parameters, own, names[id(p)])
            for inner in module.modules()
            for own, p in inner._parameters.items()
            if p is not None
        ]

    def call(self, function: Function, w: Mapping[str, Tensor], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        before = [held[own] for held, own, _ in self._at]
        try:
            for held, own, name in self._at:
                held[own] = w[name]  # type: ignore[assignment]
            return function(*args, **kwargs)
        finally:
            for (held, own, _), p in zip(self._at, before, strict=True):
                held[own] = p


_places: WeakKeyDictionary[nn.Module, Places] = WeakKeyDictionary()


def forget(module: nn.Module) -> None:
    """Read a module again: parts of it may have been replaced."""
    _places.pop(module, None)
    _ways.pop(module, None)


def call(
    module: nn.Module,
    w: Mapping[str, Tensor],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    function: Function | None = None,
) -> Any:
    """``module(*args, **kwargs)`` with these weights, by the names of its parameters. ``function``: in its place."""
    if isinstance(module, torch.jit.ScriptModule):
        return torch.func.functional_call(module, dict(w), tuple(args), dict(kwargs))
    places = _places.get(module)
    if places is None:
        places = _places[module] = Places(module)
    return places.call(function or module, w, args, kwargs)


def mapped(function: Callable[..., Any], xs: Sequence[Tensor]) -> Any:
    """`torch.vmap`. Raises `PayloadError` for a function that draws random numbers."""
    try:
        return torch.func.vmap(function)(*xs)
    except RuntimeError as error:
        if "randomness" not in str(error):
            raise
        raise PayloadError(
            "draws random numbers inside of a module that is taken whole, and would draw others when its forward is "
            "repeated. Remedy: .eval() before compiling if that switches it off, and an nn.Dropout submodule of the "
            "model before or behind it, which has a mask for each message"
        ) from error


_ways: WeakKeyDictionary[nn.Module, dict[object, str]] = WeakKeyDictionary()


def over_rows(
    body: object,
    run: Callable[[Mapping[str, Tensor], Sequence[Tensor]], Any],
    module: nn.Module,
    w: Mapping[str, Tensor],
    xs: Sequence[Tensor],
    *,
    batches: bool,
) -> Any:
    """``run(w, row)`` of every row, with a first dimension for the rows. ``body``: that calls the module.

    ``batches``: whether rows may be batches of one.
    """
    key = (body, tuple((x.shape[1:], x.dtype) for x in xs), batches and all(x.shape[1:2] == (1,) for x in xs))
    known = _ways.setdefault(module, {})
    if key not in known:
        buffers = [(b, b._version, b.clone()) for b in module.buffers()]
        known[key] = _find(run, w, xs, key[2])
        for b, version, before in buffers:  # a trial leaves no trace
            if b._version != version:
                b.copy_(before)
    if known[key] != "vmap":
        try:
            made = run(w, xs) if known[key] == "as it is" else _as_batch(run, w, xs)
        except Exception:
            made = None
        if _are_rows(made, len(xs[0])):
            return made
        known[key] = "vmap"  # it asks for the number of rows
    return mapped(lambda *row: run(w, row), xs)


def _are_rows(nest: Any, count: int) -> bool:
    """Whether the first dimension of all tensors is that of the rows."""
    if isinstance(nest, Tensor):
        return nest.shape[:1] == (count,)
    if isinstance(nest, tuple | list | dict):
        return all(_are_rows(item, count) for item in (nest.values() if isinstance(nest, dict) else nest))
    return nest is not None


def _find(run: Function, w: Mapping[str, Tensor], xs: Sequence[Tensor], batches: bool) -> str:
    if not any(x.is_floating_point() for x in xs):
        return "vmap"  # random integers may be none that the module knows
    random = torch.Generator().manual_seed(0)
    given = _trial(xs, [tuple(t.shape) for t in w.values()], random)
    for i, x in enumerate(xs):
        if not x.is_floating_point():
            given[i] = x[torch.arange(len(given[i])) % len(x)]
    weights = {name: _weight(t, random) for name, t in w.items()}

    def slow(*rows: Tensor) -> Any:
        return torch.func.vmap(lambda *row: run(weights, row))(*rows)

    if batches and _agree(lambda *rows: _as_batch(run, weights, rows), slow, given):
        return "as a batch"
    return "as it is" if _agree(lambda *rows: run(weights, rows), slow, given) else "vmap"


def _weight(t: Tensor, random: torch.Generator) -> Tensor:
    """Random, of the size that weights have: results that overflow tell nothing."""
    if not t.is_floating_point():
        return t
    noise = _random(t.shape, t, random)
    return t.detach() + 0.3 * noise if t.dim() < 2 else noise / (t.numel() / max(1, t.shape[0])) ** 0.5


def _as_batch(run: Function, w: Mapping[str, Tensor], xs: Sequence[Tensor]) -> Any:
    made = run(w, [x.flatten(0, 1) for x in xs])
    return _apart(made, len(xs[0]))


def _apart(nest: Any, rows: int) -> Any:
    if isinstance(nest, Tensor):
        return nest.unflatten(0, (rows, 1))
    if isinstance(nest, tuple) and hasattr(nest, "_fields"):
        return type(nest)(*(_apart(item, rows) for item in nest))
    if isinstance(nest, tuple | list):
        return type(nest)(_apart(item, rows) for item in nest)
    return {k: _apart(item, rows) for k, item in nest.items()} if isinstance(nest, dict) else nest
