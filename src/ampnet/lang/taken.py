"""Taken: modules that become one node: how they compute many messages at once, and the form of their outputs.

    module                                             given sequences (a Seq, or families over one)
    nn.RNN, nn.GRU, nn.LSTM                            packed; every step's output as a family, and the last state
    nn.MultiheadAttention                              padded; a family, and None for the weights
    nn.TransformerEncoderLayer, ...DecoderLayer        padded; a family
    nn.TransformerEncoder, ...Decoder, nn.Transformer  their layers, one node each
    any other                                          all of one length at once; an output with a row for each element
                                                       is a family, any other is one value

A tensor of fixed shape ``[length, ...]`` is a sequence too: the output is then a tensor of that length.

Padding masks are made here. Of the other masks only ``is_causal=True`` is supported: a mask of fixed size has no
meaning for sequences of any length.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from ampnet.lang.trace import current
from ampnet.nodes.bodies import (
    Batched,
    Body,
    Direct,
    Fixed,
    Mapped,
    Padded,
    Port,
    Recurrent,
    Stacked,
    filled,
    mapped,
    tensors,
)

_LENGTHS = ((8, 9), (40, 41))
"""Two sequence lengths that a module is tried with, to see which of its outputs have a row for each element."""


class Fault(Exception):
    """A module cannot be applied to its arguments. The text says why."""


@dataclass(frozen=True, slots=True)
class Out:
    """One output tensor of a module."""

    follows: bool
    """Whether it has a row for each row of the first sequence."""
    shape: tuple[int, ...]
    """The shape of a row, or of the whole tensor."""
    dtype: torch.dtype | None = None
    """None: that of the module's parameters. Integers beside floats are stored as floats, exactly up to 2**24."""

    @property
    def width(self) -> int:
        return int(torch.Size(self.shape).numel())


@dataclass(frozen=True, slots=True)
class Taken:
    """The body that computes a module, and the nest of `Out` that it returns; other objects in it are unchanged."""

    body: Body
    outs: Any

    def flat(self) -> list[Out]:
        """Its outputs, in the order of concatenation."""
        found: list[Out] = []
        mapped(self.outs, lambda leaf: found.append(leaf) if isinstance(leaf, Out) else None)
        return found

    @property
    def as_it_is(self) -> bool:
        """Whether it returns one tensor, which keeps its shape."""
        return isinstance(self.outs, Out) and not self.body.grouped and not isinstance(self.body, Fixed)


class Attention(nn.Module):
    """Scaled dot products of each query with all keys, by heads: ``[batch, queries, width]``."""

    def __init__(self, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
    ) -> Tensor:
        q, k, v = (x.unflatten(-1, (self.heads, -1)).transpose(-2, -3) for x in (query, key, value))
        seen = None if key_padding_mask is None else ~key_padding_mask[:, None, None, :]
        if attn_mask is not None:
            seen = ~attn_mask if seen is None else seen & ~attn_mask
        return scaled_dot_product_attention(q, k, v, attn_mask=seen).transpose(-2, -3).flatten(-2)


KNOWN = (
    nn.RNN,
    nn.GRU,
    nn.LSTM,
    nn.MultiheadAttention,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoderLayer,
    Attention,
)
"""Modules of sequences that are computed for all sequences at once."""

_BATCHED = (nn.modules.conv._ConvNd, nn.modules.batchnorm._BatchNorm, nn.GroupNorm)

_cache: WeakKeyDictionary[nn.Module, dict[object, Taken]] = WeakKeyDictionary()


def taken(
    module: nn.Module,
    kind: type | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    rows: Sequence[Tensor],
    families: Sequence[int],
) -> Taken:
    """Returns how a module computes with these arguments, in which a `Port` stands for each tensor.

    ``kind``: the type it is treated as. ``rows``: a row of each port, on the meta device. ``families``: the sequence
    number of each port; -1: not a sequence. Raises `Fault` if the module cannot be applied to them.
    """
    made_of = tuple((id(inner), inner.training) for inner in module.modules())  # a layer may be replaced
    weights = tuple((p.shape, p.dtype) for p in module.parameters())
    key = (kind, repr((args, kwargs)), tuple((r.shape, r.dtype) for r in rows), tuple(families), made_of, weights)
    known = _cache.setdefault(module, {})
    if key not in known:
        known[key] = _taken(module, kind, args, kwargs, rows, families)
    return known[key]


def _taken(
    module: nn.Module,
    kind: type | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    rows: Sequence[Tensor],
    families: Sequence[int],
) -> Taken:
    if kind in KNOWN:
        if max(families) >= 0:
            return _known(module, args, kwargs, rows, families)
        if rows[0].dim() != 2:
            raise Fault(
                f"takes a sequence: a Seq, a family, or one tensor of shape [length, width]; got {tuple(rows[0].shape)}"
            )
        first_state = issubclass(kind, nn.RNNBase)
        sequences = [0 if i == 0 or not first_state else -1 for i in range(len(rows))]
        inner = [r[0] if s == 0 else r for r, s in zip(rows, sequences, strict=True)]
        found = _known(module, args, kwargs, inner, sequences)
        length = rows[0].shape[0]
        outs = mapped(found.outs, lambda o: Out(False, (length, *o.shape) if o.follows else o.shape) if o else o)
        return Taken(Fixed(found.body, sum(o.width for o in found.flat() if o.follows)), outs)
    hooked = next((m for m in module.modules() if m._backward_hooks or m._backward_pre_hooks), None)
    if hooked is module and type(module) is nn.Linear and not (module._forward_hooks or module._forward_pre_hooks):
        return Taken(Direct(args, kwargs), Out(False, (*rows[0].shape[:-1], module.out_features)))
    if hooked is not None:
        raise Fault(
            f"has a backward hook ({type(hooked).__name__}), which would never be called: many messages are computed "
            f"at once. A function of your own can go before or behind it"
        )
    if max(families) >= 0:
        return _any(module, args, kwargs, rows, families)
    body: type[Body] = Mapped
    given = (*args, *kwargs.values())
    if kind is not None and kind.__module__.startswith("torch.nn.") and all(isinstance(p, Port) for p in given):
        if issubclass(kind, nn.Bilinear) or (kind is nn.RNNCell and all(r.dim() == 1 for r in rows)):
            body = Direct
        elif issubclass(kind, _BATCHED) and len(given) == 1:
            body = Batched
    made = _tried(module, args, kwargs, rows)
    outs = mapped(made, lambda t: Out(False, tuple(t.shape), t.dtype) if isinstance(t, Tensor) else t)
    return _checked(Taken(body(args, kwargs), outs))


def _checked(made: Taken) -> Taken:
    dtypes = {out.dtype for out in made.flat() if out.dtype is not None}
    if len(dtypes) > 1 and dtypes & {torch.bfloat16, torch.float16}:
        names = ", ".join(sorted(map(str, dtypes)))
        raise Fault(f"gives tensors of several dtypes ({names}), which would be stored side by side in 16 bits")
    return made


def shapes_of(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Returns the module's outputs for tensors on the meta device: their shapes and dtypes, nothing computed."""
    token = current.set(None)
    try:
        state = [*module.named_parameters(), *module.named_buffers()]
        weights = {n: torch.empty_like(p, device="meta").requires_grad_(p.requires_grad) for n, p in state}
        return torch.func.functional_call(module, weights, args, kwargs)
    finally:
        current.reset(token)


def _tried(module: nn.Module, args: Any, kwargs: Any, given: Sequence[Tensor]) -> Any:
    """Returns the module's outputs for tensors on the meta device. Raises `Fault` if it cannot be applied to them."""
    try:
        return shapes_of(module, *filled((args, kwargs), given))
    except Exception as error:
        shapes = ", ".join(f"{tuple(x.shape)} {x.dtype}" for x in given)
        loose = next((n for inner in module.modules() for n, v in vars(inner).items() if isinstance(v, Tensor)), None)
        hint = f". Its tensor '{loose}' is no buffer: self.register_buffer('{loose}', ...)" if loose else ""
        raise Fault(f"cannot be applied to {shapes}: {error}{hint}") from error


# -- modules of sequences


def _known(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], rows: Sequence[Tensor], families: Sequence[int]
) -> Taken:
    try:
        bound = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    except TypeError as error:
        raise Fault(f"is called with other arguments than it takes: {error}") from None
    given = {name: value for name, value in bound.items() if value is not None and name not in _FLAGS}
    if isinstance(module, nn.RNNBase):
        return _recurrent(module, given, rows, families)
    mask = next((name for name in given if "mask" in name), None)
    if mask is not None:
        raise Fault(
            f"is given {mask}, a mask of fixed size, and sequences differ in length. Padding is masked as needed; "
            f"is_causal=True hides later elements; to look along chosen pairs use messages(...) along Edges"
        )
    ports = [p.number for p in given.values() if isinstance(p, Port) and families[p.number] >= 0]
    if len(ports) != len(given):
        raise Fault(f"takes sequences alone: a Seq or family for each of {', '.join(given)}")
    looks = isinstance(module, nn.MultiheadAttention | Attention)
    if looks and families[ports[1]] != families[ports[2]]:
        raise Fault("needs a value for each key: keys and values are of different sequences")
    first, other = ports[0], ports[1] if looks else ports[0]
    if looks:
        masks, hidden = {"key_padding_mask": other}, "attn_mask"
    elif isinstance(module, nn.TransformerDecoderLayer):
        masks, hidden = {"tgt_key_padding_mask": first, "memory_key_padding_mask": ports[1]}, "tgt_mask"
    else:
        masks, hidden = {"src_key_padding_mask": first}, "src_mask"
    causal = any(bound.get(name) for name in ("is_causal", "tgt_is_causal")) or getattr(module, "causal", False)
    weighs = isinstance(module, nn.MultiheadAttention)
    body = Padded(
        tuple(Port(p) for p in ports),
        {"need_weights": False} if weighs else {},
        masks,
        (hidden, first, other) if causal else None,
        bool(getattr(getattr(module, "self_attn", module), "batch_first", True)),
    )
    _check_padded(module, body, rows)
    width = rows[ports[2]].shape[-1] if isinstance(module, Attention) else rows[first].shape[-1]
    out = Out(True, (int(width),))
    return Taken(body, (out, None) if weighs else out)


_FLAGS = ("is_causal", "tgt_is_causal", "memory_is_causal", "need_weights", "average_attn_weights")


def _check_padded(module: nn.Module, body: Padded, rows: Sequence[Tensor]) -> None:
    for row in rows:
        if row.dim() != 1 or not row.is_floating_point():
            raise Fault(f"takes sequences of rows, got elements of shape {tuple(row.shape)} {row.dtype}")
    _tried(module, body.args, body.kwargs, [row.expand(1, 2, *row.shape) for row in rows])


def _recurrent(module: nn.RNNBase, bound: Mapping[str, Any], rows: Sequence[Tensor], families: Sequence[int]) -> Taken:
    first, state = bound["input"], bound.get("hx")
    if not isinstance(first, Port) or first.number != 0 or families[0] < 0:
        raise Fault("takes a sequence: a Seq or family")
    row = rows[0]
    if tuple(row.shape) != (module.input_size,) or row.dtype != module.all_weights[0][0].dtype:
        dtype = module.all_weights[0][0].dtype
        raise Fault(f"takes elements of ({module.input_size},) {dtype}, got {tuple(row.shape)} {row.dtype}")
    ways, width = module.num_layers * (1 + module.bidirectional), module.proj_size or module.hidden_size
    ends = [Out(False, (ways, width)), Out(False, (ways, module.hidden_size))][: 1 + (module.mode == "LSTM")]
    if state is not None:
        for port, end in zip(state if isinstance(state, tuple | list) else (state,), ends, strict=True):
            if not isinstance(port, Port) or families[port.number] >= 0 or tuple(rows[port.number].shape) != end.shape:
                raise Fault(f"takes a first state of shape {end.shape} for each sequence, one value")
    out = Out(True, (width * (1 + module.bidirectional),))
    body = Recurrent((first,) if state is None else (first, state))
    return Taken(body, (out, ends[0] if len(ends) == 1 else tuple(ends)))


def _any(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], rows: Sequence[Tensor], families: Sequence[int]
) -> Taken:
    """Find the outputs with a row for each element, by trying two lengths."""
    made: list[Any] = []
    for short, long in _LENGTHS:
        try:
            made = [
                _tried(
                    module,
                    args,
                    kwargs,
                    [r.expand(n, *r.shape) if f >= 0 else r for r, f in zip(rows, families, strict=True)],
                )
                for n in (short, long)
            ]
            break
        except Fault:
            if (short, long) == _LENGTHS[-1]:
                raise
    pairs = list(zip(tensors(made[0]), tensors(made[1]), strict=True))
    outs = []
    for a, b in pairs:
        follows = a.shape[:1] == (short,) and b.shape[:1] == (long,)
        if a.shape[follows:] != b.shape[follows:]:
            raise Fault(
                f"gives a tensor of shape {tuple(a.shape)} for {short} elements and {tuple(b.shape)} for {long}; only "
                f"its first dimension may follow their number"
            )
        outs.append(Out(follows, tuple(a.shape[follows:]), a.dtype))
    body = Stacked(args, kwargs, tuple(f >= 0 for f in families), tuple(o.follows for o in outs))
    left = iter(outs)
    return _checked(Taken(body, mapped(made[0], lambda leaf: next(left) if isinstance(leaf, Tensor) else leaf)))
