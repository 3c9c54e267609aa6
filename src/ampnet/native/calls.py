"""Calls: the native kernels as functions on tensors.

Each returns whether it computed. It does not where numbers are of another type than float32 and float64, on another
device, not adjacent within a row, or where kernels are not compiled; then its caller computes with torch:

    if not calls.sum_rows(total, g, add=True):
        total.add_(g.sum(0))

A call is a record of 64-bit words (`source/kernels.cpp`): function, length, threads, and arguments; a tensor is
the address of its first row and the distance between rows.
"""

from __future__ import annotations

import operator
import struct
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import get_ident

import torch
from torch import Tensor

from ampnet.native import build
from ampnet.state import Ints

NONE, RELU, TANH, SIGMOID = range(4)
ACTIVATIONS = {None: NONE, "relu": RELU, "tanh": TANH, "sigmoid": SIGMOID}


def _bits(value: float) -> int:
    """A number as a word."""
    bits: int = struct.unpack("q", struct.pack("d", value))[0]
    return bits


_ONE = _bits(1.0)
_NAMES = (
    "product",
    "gru_forward",
    "gru_backward",
    "cell_forward",
    "cell_backward",
    "fetch",
    "add_back",
    "sum_up",
    "mean",
    "mean_back",
    "logsumexp",
    "logsumexp_back",
    "sum_rows",
    "activate",
    "clear",
    "adam",
    "adagrad",
    "activate_back",
    "cross_entropy",
    "selection",
    "errors",
    "binary_cross_entropy",
    "range",
    "look",
    "largest",
    "pointwise",
)
POINTWISE = (
    *("copy", "add", "sub", "mul", "div", "neg", "relu", "tanh", "sigmoid", "exp", "log", "square", "abs"),
    *("relu_back", "tanh_back", "sigmoid_back", "square_back", "abs_back", "div_back", "total"),
)
"""The elementwise steps, in the order of `source/pointwise.h`."""
_functions: dict[torch.dtype, dict[str, int]] = {}
"""Addresses, by type of numbers; empty until the kernels are loaded."""
_run: Callable[[int, int], None]
_begin_wave: Callable[[], None]
count = 0
"""The number of calls so far."""
observer: Callable[[str, array[int], torch.dtype], None] | None = None
"""Makes the calls in our place, and looks at them (`ampnet.profile`)."""
tape: array[int] | None = None
"""Where calls are written down as they are made (`ampnet.wave.tape`)."""
writer = 0
"""The thread whose calls are written down."""


def takes(x: Tensor) -> bool:
    """Whether kernels compute with tensors like this."""
    return not build._off and x.is_cpu and x.dtype in (_functions or _look())


def _look() -> dict[torch.dtype, dict[str, int]]:
    global _run, _begin_wave
    found = build.kernels()
    if found is not None and not _functions:
        _run, _begin_wave = found.run, found.begin_wave
        for dtype, ending in ((torch.float32, "float32"), (torch.float64, "float64")):
            _functions[dtype] = {name: found.address(f"{name}_{ending}") for name in _NAMES}
    return _functions


def _call(name: str, dtype: torch.dtype, *arguments: int) -> None:
    global count
    count += 1
    words = array("q", (_functions[dtype][name], 3 + len(arguments), torch.get_num_threads(), *arguments))
    if observer is not None:
        observer(name, words, dtype)
    else:
        make(words)
    if tape is not None and writer == get_ident():
        tape.extend(words)


def make(words: array[int]) -> None:
    """Make one call, or several, one after the other."""
    _run(words.buffer_info()[0], len(words))


def replay(words: array[int]) -> None:
    """Make calls that were written down."""
    global count
    count += 1
    make(words)


_ABSENT = (0, 0)


def _fits(dtype: torch.dtype, x: Tensor) -> bool:
    """Whether these are rows of this type, each without gaps."""
    return x.dtype == dtype and x.dim() == 2 and x.stride(1) == 1


def begin_wave() -> None:
    """From now on, weights may be others than those that steady products read until now."""
    if _functions:
        _begin_wave()


def product(
    out: Tensor,
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    *,
    add: bool = False,
    activation: int = NONE,
    alpha: float = 1.0,
    steady: bool = False,
) -> bool:
    """``out = act(alpha x w + bias)``; with ``add``, ``act(out + alpha x w + bias)``. ``steady``: ``w`` stays the same
    until `begin_wave`."""
    dtype = out.dtype
    if not takes(out) or x.dtype != dtype or w.dtype != dtype or out.dim() != 2 or x.dim() != 2:
        return False
    across, columns = out.stride()
    if columns != 1 and out.shape[1] > 1:
        return False
    (m, k), n = x.shape, w.shape[1]
    assert out.shape == (m, n)
    assert w.shape[0] == k
    scale = _ONE if alpha == 1.0 else _bits(alpha)
    _call(
        "product",
        dtype,
        m,
        n,
        k,
        x.data_ptr(),
        *x.stride(),
        w.data_ptr(),
        *w.stride(),
        out.data_ptr(),
        across,
        add,
        0 if bias is None else bias.data_ptr(),
        activation,
        scale,
        steady,
    )
    return True


def gru_forward(gi: Tensor, gh: Tensor, h: Tensor, r: Tensor, z: Tensor, new: Tensor, hn: Tensor, y: Tensor) -> bool:
    """The gates and new states ``y`` of a GRU, from both of its products and the old states."""
    dtype = y.dtype
    if not takes(y) or not _fits(dtype, h) or gi.dtype != dtype:
        return False
    words: list[int] = [*y.shape]
    for x in (gi, gh, h, r, z, new, hn, y):
        words += (x.data_ptr(), x.stride(0))
    _call("gru_forward", dtype, *words, *_ABSENT * 4)
    return True


def gru_backward(
    g: Tensor, h: Tensor, r: Tensor, z: Tensor, new: Tensor, hn: Tensor, di: Tensor, dh: Tensor, through: Tensor
) -> bool:
    """The gradients of both products of a GRU, and what goes straight to the old states."""
    dtype = r.dtype
    if not takes(g) or not _fits(dtype, h) or not _fits(dtype, g):
        return False
    words: list[int] = [*g.shape, *_ABSENT * 2]
    for x in (h, r, z, new, hn):
        words += (x.data_ptr(), x.stride(0))
    words += _ABSENT
    for x in (g, di, dh, through):
        words += (x.data_ptr(), x.stride(0))
    _call("gru_backward", dtype, *words)
    return True


class CellGates:
    """Which columns of a cell's gates are which, in widths of a state: input, candidate, output, first forget gate."""

    __slots__ = ("at", "children")

    def __init__(self, i: int, u: int, o: int, f: int = 0, children: int = 0) -> None:
        self.at, self.children = (i, u, o, f), children

    def forward(self, gates: Tensor, c: Tensor | None, y: Tensor, squashed: Tensor) -> bool:
        """From the gates' products, in place, and the cells ``c`` of all children: ``y = [h, c]`` and tanh(c)."""
        return self._compute("cell_forward", gates, squashed, (gates, c, y, squashed, None, None))

    def backward(self, gates: Tensor, c: Tensor | None, squashed: Tensor, g: Tensor, dc: Tensor | None) -> bool:
        """From the gradient ``g`` of ``[h, c]``: those of the gates' products, in the gates' place, and of ``c``."""
        return self._compute("cell_backward", gates, squashed, (gates, c, None, squashed, g, dc))

    def _compute(self, name: str, gates: Tensor, squashed: Tensor, tensors: tuple[Tensor | None, ...]) -> bool:
        dtype = gates.dtype
        if not takes(gates):
            return False
        rows, n = squashed.shape
        words: list[int] = [rows, n, self.children, *[n * place for place in self.at]]
        for x in tensors:
            if x is None:
                words += _ABSENT
            elif not _fits(dtype, x):
                return False
            else:
                words += (x.data_ptr(), x.stride(0))
        _call(name, dtype, *words)
        return True


def _index(index: Tensor | None) -> int:
    return 0 if index is None else index.data_ptr()


def _indexed(index: Tensor | None) -> bool:
    return index is None or (index.is_contiguous() and index.dtype == torch.int64)


def fetch(out: Tensor, x: Tensor, index: Tensor | None) -> bool:
    """``out[i] = x[index[i]]``."""
    return _move("fetch", out, x, out, index)


def add_back(total: Tensor, g: Tensor, index: Tensor | None) -> bool:
    """``total[index[i]] += g[i]``, one after the other; without an index ``total += g``."""
    return _move("add_back", total, g, g, index)


def _move(name: str, to: Tensor, x: Tensor, ordered: Tensor, index: Tensor | None) -> bool:
    """``ordered``: the side whose rows are taken in order."""
    dtype = to.dtype
    if to.dim() == 1 == x.dim():  # rows that are single numbers
        to, x, ordered = to.unsqueeze(1), x.unsqueeze(1), ordered.unsqueeze(1)
    if not takes(to) or not _fits(dtype, to) or not _fits(dtype, x) or not _indexed(index):
        return False
    rows, width = ordered.shape
    (to_rows, to_width), (x_rows, x_width) = to.shape, x.shape
    if to_width != x_width:
        return False
    if index is None:
        assert to_rows == x_rows
    else:
        assert rows == index.shape[0]
    words = (to.data_ptr(), to.stride(0), x.data_ptr(), x.stride(0))
    _call(name, dtype, rows, width, *words, _index(index))
    return True


def sum_up(out: Tensor, x: Tensor, index: Tensor, offsets: Tensor, *, add: bool = False) -> bool:
    """``out[t]``: the sum of the rows of ``x`` with the numbers ``index[offsets[t] : offsets[t + 1]]``."""
    dtype = out.dtype
    if not takes(out) or not _fits(dtype, out) or not _fits(dtype, x) or not _indexed(index) or not _indexed(offsets):
        return False
    targets, width = out.shape
    assert width == x.shape[1]
    assert targets == offsets.shape[0] - 1
    words = (out.data_ptr(), out.stride(0), x.data_ptr(), x.stride(0), index.data_ptr(), offsets.data_ptr(), add)
    _call("sum_up", dtype, targets, width, *words)
    return True


def mean(out: Tensor, x: Tensor, index: Tensor, offsets: Tensor) -> bool:
    """``out[t]``: the mean of the rows of ``x`` with the numbers ``index[offsets[t] : offsets[t + 1]]``; zero of
    none."""
    return _segments("mean", out, x, out, index, offsets, None)


def mean_back(total: Tensor, g: Tensor, index: Tensor, offsets: Tensor) -> bool:
    """Add the gradients of these rows to ``total``; ``g``: those of their means."""
    return _segments("mean_back", total, g, g, index, offsets, None)


def logsumexp(out: Tensor, x: Tensor, index: Tensor, offsets: Tensor, shares: Tensor) -> bool:
    """``out[t]``: the log of the sum of exp of these rows. ``shares``: of each number in ``index``, the row's share."""
    return _segments("logsumexp", out, x, out, index, offsets, shares)


def logsumexp_back(total: Tensor, g: Tensor, index: Tensor, offsets: Tensor, shares: Tensor) -> bool:
    """Add the gradients of these rows to ``total``; ``g``: those of the logs."""
    return _segments("logsumexp_back", total, g, g, index, offsets, shares)


def _segments(
    name: str, to: Tensor, x: Tensor, by_target: Tensor, index: Tensor, offsets: Tensor, shares: Tensor | None
) -> bool:
    dtype = to.dtype
    if not takes(to) or not _fits(dtype, to) or not _fits(dtype, x) or not _indexed(index) or not _indexed(offsets):
        return False
    assert len(by_target) == len(offsets) - 1
    assert to.shape[1] == x.shape[1]
    words = (to.data_ptr(), to.stride(0), x.data_ptr(), x.stride(0), index.data_ptr(), offsets.data_ptr())
    kept = _ABSENT if shares is None else (shares.data_ptr(), shares.stride(0))
    _call(name, dtype, *by_target.shape, *words, *kept)
    return True


Place = tuple[int, int, int]
"""The number of a tensor of rows, the first column there, and 0 where one column meets all others, else 1."""


@dataclass(frozen=True, slots=True)
class PointwiseStep:
    """``out = f(a, b, c)`` of some columns."""

    what: int
    """Index into `POINTWISE`."""
    add: bool
    """Whether it is added to what is there."""
    width: int
    places: tuple[Place, ...]
    """Of the result, and of what it is computed from."""


_NOWHERE = [(0, 0, 0) * (4 - n) for n in range(5)]


def pointwise(steps: Sequence[PointwiseStep], rows: int, tensors: Sequence[Tensor]) -> bool:
    """Elementwise steps on rows, one after the other. ``tensors``: ``[rows, columns]``; of one row: a constant."""
    dtype = tensors[0].dtype
    if not takes(tensors[0]) or any(not _fits(dtype, x) for x in tensors):
        return False
    size = tensors[0].element_size()
    where = [(x.data_ptr(), 0 if x.shape[0] == 1 != rows else x.stride(0)) for x in tensors]
    words: list[int] = []
    for step in steps:
        words += (step.what, step.add, step.width)
        for number, column, stride in step.places:
            at, row = where[number]
            words += (at + size * column, row, stride)
        words += _NOWHERE[len(step.places)]
    _call("pointwise", dtype, rows, len(steps), *words)
    return True


def clear(x: Tensor) -> bool:
    """All numbers become zero."""
    if not takes(x) or not x.is_contiguous():
        return False
    _call("clear", x.dtype, 1, x.numel(), x.data_ptr(), 0)
    return True


def sum_rows(total: Tensor, g: Tensor, *, add: bool) -> bool:
    """``total``: the sum of all rows."""
    dtype = total.dtype
    if not takes(total) or not _fits(dtype, g) or total.stride() != (1,) or total.shape[0] != g.shape[1]:
        return False
    _call("sum_rows", dtype, *g.shape, total.data_ptr(), g.data_ptr(), g.stride(0), add)
    return True


def activate(y: Tensor, activation: int) -> bool:
    """Apply an activation in place."""
    dtype = y.dtype
    if not takes(y) or not _fits(dtype, y):
        return False
    _call("activate", dtype, *y.shape, y.data_ptr(), y.stride(0), activation)
    return True


def activate_back(g: Tensor, y: Tensor, activation: int) -> bool:
    """From the gradient behind an activation to that before it, in place."""
    dtype = g.dtype
    if not takes(g) or not _fits(dtype, g) or not _fits(dtype, y):
        return False
    _call("activate_back", dtype, *g.shape, g.data_ptr(), g.stride(0), y.data_ptr(), y.stride(0), activation)
    return True


class Judge:
    """The losses, each with its gradient and its usual metric. What came of the last call:"""

    __slots__ = ("_told",)

    def __init__(self) -> None:
        self._told = array("d", (0.0, 0.0, 0.0))

    @property
    def loss(self) -> float:
        """The sum of all losses."""
        return self._told[0]

    @property
    def metric(self) -> float:
        """The sum of metrics: hits, or absolute errors."""
        return self._told[1]

    @property
    def wrong(self) -> bool:
        """Whether a label is out of range. Nothing was computed then."""
        return self._told[2] > 0

    def cross_entropy(self, x: Tensor, labels: Tensor, g: Tensor, weight: float) -> bool:
        """Of rows of scores; ``g``: the gradient of the sum of losses."""
        dtype = x.dtype
        if not takes(x) or not _fits(dtype, x) or not labels.is_contiguous() or not x.shape[1]:
            return False
        words = (*x.shape, x.data_ptr(), x.stride(0), labels.data_ptr(), g.data_ptr(), g.stride(0))
        _call("cross_entropy", dtype, *words, *self._scaled(weight))
        return True

    def selection(self, x: Tensor, offsets: Ints | None, labels: Tensor, g: Tensor, weight: float) -> bool:
        """Of single scores, between whose ``offsets`` one is to be chosen."""
        if not takes(x) or not x.is_contiguous() or not labels.is_contiguous():
            return False
        at = 0 if offsets is None else offsets.ctypes.data
        count = len(labels) if offsets is None else len(offsets) - 1
        _call("selection", x.dtype, count, x.data_ptr(), at, labels.data_ptr(), g.data_ptr(), *self._scaled(weight))
        return True

    def errors(self, x: Tensor, y: Tensor, g: Tensor, weight: float, *, squared: bool) -> bool:
        """Squared or absolute errors, means over rows."""
        return self._of_numbers("errors", x, y, g, weight, squared)

    def binary_cross_entropy(self, x: Tensor, y: Tensor, g: Tensor, weight: float) -> bool:
        """Of logits, means over rows."""
        return self._of_numbers("binary_cross_entropy", x, y, g, weight)

    def _of_numbers(self, name: str, x: Tensor, y: Tensor, g: Tensor, weight: float, *how: int) -> bool:
        dtype = x.dtype
        if not takes(x) or not x.numel():
            return False
        x, y, g = (_as_rows(one) for one in (x, y, g))
        if not _fits(dtype, x) or not _fits(dtype, y):
            return False
        words = (x.data_ptr(), x.stride(0), y.data_ptr(), y.stride(0), g.data_ptr(), g.stride(0))
        _call(name, dtype, *x.shape, *words, *how, *self._scaled(weight))
        return True

    def _scaled(self, weight: float) -> tuple[int, int]:
        return self._told.buffer_info()[0], _ONE if weight == 1 else _bits(weight)


def _as_rows(x: Tensor) -> Tensor:
    return x if x.dim() == 2 else x.unsqueeze(1) if x.dim() == 1 else x.flatten(1)


def within(index: Tensor, size: int) -> bool | None:
    """Whether all of these are indices of a table of this size; None: it was not computed. It is not while calls are
    written down: nobody would read the answer when they are played again."""
    if tape is not None and writer == get_ident():
        return None
    if not (index.is_cpu and index.dtype == torch.int64 and index.is_contiguous()) or not _look() or build._off:
        return None
    wrong = array("d", (0.0,))
    _call("range", torch.float32, index.numel(), index.data_ptr(), size, wrong.buffer_info()[0])
    return wrong[0] == 0


def finite(tensors: Sequence[Tensor]) -> bool | None:
    """Whether all numbers are finite; None: it was not computed."""
    if not tensors or not takes(tensors[0]):
        return None if tensors else True
    told = array("d", (0.0,))
    at, threads, words = told.buffer_info()[0], torch.get_num_threads(), array("q")
    for one in tensors:
        x, found = one, _functions.get(one.dtype)
        if not one.is_contiguous() and one.dim() and one.shape[0] and one.stride(0) == 0:
            x = one[:1]  # one row, seen many times
        if found is None or not x.is_cpu or not x.is_contiguous():
            return None
        words.extend((found["look"], 6, threads, x.numel(), x.data_ptr(), at))
    if words:
        if observer is not None:
            observer("look", words, tensors[0].dtype)
        else:
            replay(words)
    return told[0] == 0


def largest(x: Tensor) -> float | None:
    """The largest absolute value, NaN if there is one; None: it was not computed."""
    if not takes(x) or not x.is_contiguous():
        return None
    told = array("d", (0.0,))
    _call("largest", x.dtype, x.numel(), x.data_ptr(), told.buffer_info()[0])
    return told[0]


class Steps:
    """Steps of an optimizer. The calls of a step are kept as long as parameters, gradients and state do not move: then
    a step is one call for all parameters."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[int, _Step] = {}
        """By the number of parameters."""

    def adam(
        self,
        parameters: Sequence[Tensor],
        gradients: Sequence[Tensor],
        means: Sequence[Tensor],
        squares: Sequence[Tensor],
        steps: Sequence[Tensor],
        *,
        rate: float,
        betas: tuple[float, float],
        eps: float,
        decay: float,
        apart: bool,
        count: float,
    ) -> bool:
        """A step of Adam (``apart``: AdamW) for several parameters. Gradients are divided by ``count``, in place."""
        lists = (parameters, gradients, means, squares, steps)
        return self._make("adam", lists, (rate, *betas, eps, decay, count, apart))

    def adagrad(
        self,
        parameters: Sequence[Tensor],
        gradients: Sequence[Tensor],
        sums: Sequence[Tensor],
        steps: Sequence[Tensor],
        *,
        rate: float,
        rate_decay: float,
        eps: float,
        decay: float,
        count: float,
    ) -> bool:
        """A step of Adagrad for several parameters."""
        return self._make("adagrad", (parameters, gradients, sums, steps), (rate, rate_decay, eps, decay, count))

    def _make(self, name: str, lists: tuple[Sequence[Tensor], ...], settings: tuple[float | bool, ...]) -> bool:
        """``lists``: the last are counts of steps; all others are numbers of one type, as many as the parameter has."""
        first = lists[0][0]
        if not takes(first):
            return False
        known = self._known.get(len(lists[0]))
        if known is None or not known.holds(lists):
            if not _alike(lists):
                return False
            known = self._known[len(lists[0])] = _Step(name, lists)
        if known.settings != settings:
            known.set(settings)
        if observer is not None:
            observer(name, known.words, first.dtype)
        else:
            replay(known.words)
        return True


class _Step:
    """The calls of a step for these tensors."""

    __slots__ = ("_each", "_lists", "_places", "settings", "words")

    def __init__(self, name: str, lists: tuple[Sequence[Tensor], ...]) -> None:
        self._lists, self._places = lists, _places(lists)
        self.settings: tuple[float | bool, ...] = ()
        self._each = [(lists[0][i].numel(), *[one[i].data_ptr() for one in lists]) for i in range(len(lists[0]))]
        function = _functions[lists[0][0].dtype][name]
        self.words = array("q", (function,))

    def holds(self, lists: tuple[Sequence[Tensor], ...]) -> bool:
        """Whether these are its tensors, and parameters and gradients have not moved."""
        if len(lists) != len(self._lists):
            return False
        for known, one in zip(self._lists, lists, strict=True):
            if known is not one and (len(known) != len(one) or not all(map(operator.is_, known, one))):
                return False
        return self._places == _places(lists)

    def set(self, settings: tuple[float | bool, ...]) -> None:
        self.settings, function = settings, self.words[0]
        words = [x if isinstance(x, bool) else _bits(x) for x in settings]
        self.words, threads = array("q"), torch.get_num_threads()
        for one in self._each:
            self.words.extend((function, 3 + len(one) + len(words), threads, *one, *words))


def _places(lists: tuple[Sequence[Tensor], ...]) -> list[int]:
    """Where parameters and gradients are. State moves only as other tensors."""
    return [x.data_ptr() for one in lists[:2] for x in one]


def _alike(lists: tuple[Sequence[Tensor], ...]) -> bool:
    dtype = lists[0][0].dtype
    for one in zip(*lists, strict=True):
        if any(x.dtype != dtype or not takes(x) or not x.is_contiguous() for x in one[:-1]):
            return False
        if one[-1].dtype != torch.float32:
            return False
    return True
