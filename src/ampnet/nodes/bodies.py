"""Bodies: how a module that was written for one message computes many of them at once. See `ampnet.nodes.module`.

    body          what the module is given
    Direct        a batch of rows, as it is
    Batched       the rows of all messages as one batch: convolutions, and what takes a batch in any case
    Mapped        one message at a time, for all of them at once: see `ampnet.nodes.together`
    Recurrent     packed sequences, for nn.RNN, nn.GRU (see `ampnet.nodes.recurrent`) and nn.LSTM
    Padded        padded sequences and a mask, for attention and transformer layers (see `ampnet.nodes.encoder`)
    Stacked       whole sequences, those of equal length at once, likewise; one by one where that cannot be
    Fixed         one of the last three, where all sequences are of one length and a row is a whole one

A body gives one row for each row of the first port. What a module gives once for a whole message (the last state of a
GRU) is written beside its first row, and zeros beside the others.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ampnet.errors import PayloadError, SlowModuleWarning
from ampnet.message import index_tensor
from ampnet.nodes.encoder import encoder_layer, has_rows
from ampnet.nodes.lengths import Lengths
from ampnet.nodes.recurrent import gru
from ampnet.nodes.together import call, over_rows

Weights = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Port:
    """Stands for the tensor of an input port, among the arguments of a module."""

    number: int


def mapped(nest: Any, function: Callable[[Any], Any]) -> Any:
    """The same tuples, lists and dictionaries with ``function`` of what is in them."""
    if isinstance(nest, tuple) and hasattr(nest, "_fields"):
        return type(nest)(*(mapped(item, function) for item in nest))
    if isinstance(nest, tuple | list):
        return type(nest)(mapped(item, function) for item in nest)
    if isinstance(nest, dict):
        return {name: mapped(item, function) for name, item in nest.items()}
    return function(nest)


def filled(nest: Any, xs: Sequence[Any]) -> Any:
    """The same arguments with these values in place of ports."""
    return mapped(nest, lambda leaf: xs[leaf.number] if isinstance(leaf, Port) else leaf)


def tensors(nest: Any) -> Iterator[Tensor]:
    """The tensors that a module has given, in order."""
    if isinstance(nest, Tensor):
        yield nest
    elif isinstance(nest, tuple | list):
        for item in nest:
            yield from tensors(item)
    elif isinstance(nest, dict):
        for item in nest.values():
            yield from tensors(item)


def flat(nest: Any, batch: int = 0) -> Tensor:
    """Returns one tensor unchanged; concatenates several, each flattened behind the first ``batch`` dimensions."""
    if isinstance(nest, Tensor):
        return nest
    return torch.cat([t.flatten(batch) if t.dim() > batch else t.unsqueeze(-1) for t in tensors(nest)], -1)


@dataclass(eq=False)
class Body:
    """Base of all bodies."""

    args: tuple[Any, ...] = (Port(0),)
    kwargs: dict[str, Any] = field(default_factory=dict)
    """The arguments of the module, with a `Port` for each tensor that comes in."""

    grouped = False
    """Whether messages have several rows, of which each counts."""

    def rows(self, module: nn.Module, w: Weights, xs: Sequence[Tensor], lengths: Sequence[Lengths]) -> Tensor:
        """The output rows. ``lengths``: of each port, where bodies are grouped."""
        raise NotImplementedError

    def call(self, module: nn.Module, w: Weights, xs: Sequence[Any], **more: Any) -> Any:
        args, kwargs = filled((self.args, self.kwargs), xs)
        return call(module, w, args, {**kwargs, **more})


class Direct(Body):
    """The module is given all rows."""

    def rows(self, module: nn.Module, w: Weights, xs: Sequence[Tensor], lengths: Sequence[Lengths]) -> Tensor:
        out: Tensor = self.call(module, w, xs)
        return out


class Batched(Body):
    """A module of one tensor that takes a batch: what rows are given as, or have already as their first dimension."""

    def rows(self, module: nn.Module, w: Weights, xs: Sequence[Tensor], lengths: Sequence[Lengths]) -> Tensor:
        (x,) = xs
        inner = not isinstance(module, nn.modules.conv._ConvNd) or x.dim() == len(module.kernel_size) + 3
        y: Tensor = self.call(module, w, [x.flatten(0, 1) if inner else x])
        return y.unflatten(0, x.shape[:2]) if inner else y


class Mapped(Body):
    """Row by row, all at once."""

    def rows(self, module: nn.Module, w: Weights, xs: Sequence[Tensor], lengths: Sequence[Lengths]) -> Tensor:
        made = over_rows(self, lambda w, row: self.call(module, w, row), module, w, xs, batches=True)
        return flat(made, 1)


class Recurrent(Body):
    """`nn.RNN`, `nn.GRU`, `nn.LSTM`: every step's output, then the last state. Further ports hold the first state."""

    grouped = True

    def rows(self, module: nn.Module, w: Weights, xs: Sequence[Tensor], lengths: Sequence[Lengths]) -> Tensor:
        assert isinstance(module, nn.RNNBase)
        packing = lengths[0].packing
        rows, places, order, back = (t.to(xs[0].device) for t in (packing[0], packing[1], packing[3], packing[4]))
        weights = [w[name] for name in module._flat_weights_names]
        ways, hidden = module.num_layers * (1 + module.bidirectional), module.hidden_size
        widths = [module.proj_size or hidden, hidden][: 1 + (module.mode == "LSTM")]
        first = filled(self.args[1:], xs)[0] if len(self.args) > 1 else None
        state = [
            xs[0].new_zeros(ways, len(order), width)
            if first is None
            else (first if isinstance(first, Tensor) else first[i]).index_select(0, order).transpose(0, 1).contiguous()
            for i, width in enumerate(widths)
        ]
        given = (xs[0].index_select(0, rows), packing.sizes)
        training = torch.is_grad_enabled()  # without dropout it changes no number, and cuDNN's backward requires it
        settings = (weights, module.bias, module.num_layers, 0.0, training, module.bidirectional)
        if module.mode == "LSTM":
            out, *last = torch.lstm(*given, state, *settings)  # type: ignore[call-overload]
        elif module.mode == "GRU" and not xs[0].is_cuda:
            out, *last = gru(given[0], packing, state[0], weights, module.num_layers, 1 + module.bidirectional)
        else:
            out, *last = _CELLS[module.mode](*given, state[0], *settings)
        ends = [lengths[0].at_first(t.transpose(0, 1).index_select(0, back).flatten(1)) for t in last]
        return torch.cat([out.index_select(0, places), *ends], -1)


_CELLS: dict[str, Callable[..., Any]] = {"GRU": torch.gru, "RNN_TANH": torch.rnn_tanh, "RNN_RELU": torch.rnn_relu}


@dataclass(eq=False)
class Padded(Body):
    """Attention and transformer layers: returns a row for each row of the first tensor, computed from its sequence."""

    masks: dict[str, int] = field(default_factory=dict)
    """Keyword arguments that take a mask of padding, and the port that it is of."""
    causal: tuple[str, int, int] | None = None
    """The keyword argument for a mask that hides later rows, and the ports of its rows and columns."""
    batch_first: bool = True

    grouped = True

    def rows(self, module: nn.Module, w: Weights, xs: Sequence[Tensor], lengths: Sequence[Lengths]) -> Tensor:
        first = lengths[0]
        if len(xs) == 1 and has_rows(module):
            given = (module, xs[0], first, self._worth(w), self.causal is not None)
            made: Tensor = call(module, w, given, {}, encoder_layer)
            return made
        other = next((r for r in lengths if r is not first and not np.array_equal(r.counts, first.counts)), None)
        pieces = [
            (part, lengths[0].unpad(self._part(module, w, xs, lengths, part), part))
            for part in lengths[0].parts(self._worth(w), other)
        ]
        return lengths[0].put_together(pieces)

    def _worth(self, w: Weights) -> int:
        """The padding rows that cost as much as a further call of the module."""
        return max(_LEAST, _CALL // max(1, sum(t.numel() for t in w.values())))

    def _part(
        self, module: nn.Module, w: Weights, xs: Sequence[Tensor], lengths: Sequence[Lengths], part: np.ndarray
    ) -> Tensor:
        padded = [r.pad(x, part) for x, r in zip(xs, lengths, strict=True)]
        more: dict[str, Any] = {name: padded[port][1] for name, port in self.masks.items()}
        if self.causal is not None:
            name, rows, columns = self.causal
            more[name] = later(padded[rows][0].shape[1], padded[columns][0].shape[1], xs[0].device)
        given = [x if self.batch_first else x.transpose(0, 1) for x, _ in padded]
        out = self.call(module, w, given, **more)
        y: Tensor = out if isinstance(out, Tensor) else out[0]
        return y if self.batch_first else y.transpose(0, 1)


_CALL = 3_000_000
"""Multiplications taken to cost as much as a call of a layer, forward and backward: a rough guess."""
_LEAST = 8


def later(rows: int, columns: int, device: torch.device) -> Tensor:
    """Returns the mask of columns after each row, which causal attention hides."""
    return torch.ones(rows, columns, dtype=torch.bool, device=device).triu(1)


@dataclass(eq=False)
class Stacked(Body):
    """Any module on whole sequences."""

    families: tuple[bool, ...] = (True,)
    """Of each port: whether it is a sequence, or one value for the whole message."""
    follows: tuple[bool, ...] = (True,)
    """Of each output: whether it has a row for each row of the first port."""

    grouped = True
    one_by_one = False

    def rows(self, module: nn.Module, w: Weights, xs: Sequence[Tensor], lengths: Sequence[Lengths]) -> Tensor:
        parts = Lengths.equal([r.counts for r in lengths])
        if not self.one_by_one:
            try:
                return self._together(parts, [self._mapped(module, w, xs, lengths, part) for part in parts], lengths[0])
            except PayloadError:
                raise
            except Exception as error:
                made = self._single(module, w, xs, lengths)
                self.one_by_one = True
                warnings.warn(
                    f"{type(module).__name__} is computed sequence by sequence, not those of one length at once: "
                    f"torch.vmap cannot map it ({str(error).splitlines()[0]})",
                    SlowModuleWarning,
                    stacklevel=2,
                )
                return made
        return self._single(module, w, xs, lengths)

    def _single(self, module: nn.Module, w: Weights, xs: Sequence[Tensor], lengths: Sequence[Lengths]) -> Tensor:
        messages = [np.array([i]) for i in range(len(lengths[0]))]
        made = []
        for message in messages:
            given = self._given(xs, lengths, message)
            out = self.call(module, w, [x[0] for x in given])
            made.append([t.unsqueeze(0) for t in tensors(out)])
        return self._together(messages, made, lengths[0])

    def _mapped(
        self, module: nn.Module, w: Weights, xs: Sequence[Tensor], lengths: Sequence[Lengths], part: np.ndarray
    ) -> list[Tensor]:
        def one(w: Weights, rows: Sequence[Tensor]) -> tuple[Tensor, ...]:
            return tuple(tensors(self.call(module, w, rows)))

        return list(over_rows(self, one, module, w, self._given(xs, lengths, part), batches=False))

    def _given(self, xs: Sequence[Tensor], lengths: Sequence[Lengths], part: np.ndarray) -> list[Tensor]:
        """``[messages, rows, ...]`` of sequences, ``[messages, ...]`` of single values."""
        out = []
        for x, r, family in zip(xs, lengths, self.families, strict=True):
            some = x.index_select(0, index_tensor(r.rows_of(part), x))
            out.append(some.unflatten(0, (len(part), -1)) if family else some)
        return out

    def _together(self, parts: list[np.ndarray], made: list[list[Tensor]], lengths: Lengths) -> Tensor:
        whole = [
            (
                part,
                torch.cat(
                    [self._beside(t, lengths.counts[part[0]], f) for t, f in zip(out, self.follows, strict=True)], -1
                ),
            )
            for part, out in zip(parts, made, strict=True)
        ]
        return lengths.put_together([(part, rows.flatten(0, 1)) for part, rows in whole])

    def _beside(self, made: Tensor, length: int, follows: bool) -> Tensor:
        """``[messages, rows, width]`` of an output."""
        if follows:
            return made.flatten(2) if made.dim() > 2 else made.unsqueeze(-1)
        single = made.reshape(len(made), 1, -1)
        return torch.nn.functional.pad(single, (0, 0, 0, int(length) - 1))


class Fixed(Body):
    """Sequences of one length, each a row ``[length, ...]``: every step's output of all, then what is given once."""

    def __init__(self, body: Body, steps: int) -> None:
        """``steps``: how many columns of what the body gives are there for each step."""
        super().__init__(body.args, body.kwargs)
        self.body, self.steps = body, steps

    def rows(self, module: nn.Module, w: Weights, xs: Sequence[Tensor], lengths: Sequence[Lengths]) -> Tensor:
        only = 1 if isinstance(self.body, Recurrent) else len(xs)  # its further ports hold a first state
        of = [Lengths(np.full(len(x), x.shape[1] if i < only else 1)) for i, x in enumerate(xs)]
        rows = [x.flatten(0, 1) if i < only else x for i, x in enumerate(xs)]
        y = self.body.rows(module, w, rows, of).unflatten(0, xs[0].shape[:2])
        return torch.cat([y[..., : self.steps].flatten(1), y[:, 0, self.steps :]], -1)
