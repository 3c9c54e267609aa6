"""Arena: rows of one width that several sites make and read, in one tensor, and their gradients in another.

    rows         [ input | cell, round 0 | cell, round 1 | ... ]      a round of a site is a slice
    gradients    [       |               |               | ... ]      every reader of a row adds to its gradient

Equal rows are kept once: an arena may then have fewer rows than positions, and ``inverse`` maps each position to its
row.

Memory is taken from a `Pool` and used again in a later wave, so that in the long run nothing is allocated. A passage
has a pool to itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ampnet.errors import PayloadError
from ampnet.native import calls


class Pool:
    """Tensors by name, with reused memory."""

    def __init__(self) -> None:
        self._stores: dict[object, Tensor] = {}
        self.generation = 0
        """Grows when a name gets new memory: tensors taken before are then invalid."""

    def stores(self) -> list[Tensor]:
        """The memory that is handed out now."""
        return list(self._stores.values())

    def take(self, name: object, shape: Sequence[int], like: Tensor) -> Tensor:
        """An uninitialised tensor of this shape; the last one of this name is no longer valid."""
        size = 1
        for n in shape:
            size *= n
        store = self._stores.get(name)
        if store is None or store.numel() < size or store.dtype != like.dtype or store.device != like.device:
            room = size if store is None else max(size, store.numel() + store.numel() // 4)
            store = self._stores[name] = torch.empty(room, dtype=like.dtype, device=like.device)
            self.generation += 1
        return store[:size].view(*shape)


class Arena:
    """The rows of one wave. See the head of this file."""

    __slots__ = (
        "blank",
        "data",
        "fixed",
        "grad",
        "inverse",
        "moved",
        "number",
        "pool",
        "pumped",
        "rows",
        "sole",
        "table",
        "touched",
        "varies",
    )

    def __init__(self, number: int, rows: int, pumped: int, moved: bool, pool: Pool, sole: bool = False) -> None:
        """``sole``: only one slot of one site, in no loop, reads its rows."""
        self.fixed = self.varies = False
        """Whether rows and gradients are in the same memory in every wave; whether their number depends on payloads."""
        self.sole = sole
        self.number, self.rows, self.pumped, self.moved, self.pool = number, rows, pumped, moved, pool
        self.data: Tensor | None = None
        self.grad: Tensor | None = None
        self.inverse: Tensor | None = None
        self.table = False
        """Whether it holds distinct rows of a table."""
        self.touched = False
        """Whether any gradient has been added."""
        self.blank = 0
        """``blank``: the number of leading rows that are zero. ``pumped``: the number of leading rows that depend on no
        parameter. ``moved``: whether gradients are needed."""

    def clear(self) -> None:
        """Reset at the beginning of a wave."""
        self.blank, self.touched = 0, False
        if not self.fixed or self.varies:
            self.data = self.grad = self.inverse = None
        elif self.grad is not None and not self.sole:
            zero(self.grad)

    @property
    def rows_made(self) -> Tensor:
        """The tensor of all rows. Some of them must have been computed."""
        assert self.data is not None
        return self.data

    def places(self) -> tuple[int, int]:
        """The addresses of its rows and of the numbers of equal ones; 0 where there are none, -1 where they vary."""
        inverse = self.inverse
        if self.varies:
            return -1, -1
        return 0 if self.data is None else self.data.data_ptr(), 0 if inverse is None else inverse.data_ptr()

    def open(self, row: Sequence[int], like: Tensor) -> Tensor:
        """The tensor of all rows, each of this shape."""
        if self.data is None:
            self.data = self.pool.take((self.number, "rows"), (self.rows, *row), like)
        elif self.data.shape[1:] != torch.Size(row) or self.data.dtype != like.dtype:
            raise PayloadError(
                f"rows of {like.dtype} {tuple(row)} do not fit among rows of {self.data.dtype} "
                f"{tuple(self.data.shape[1:])}, with which they are joined later"
            )
        return self.data

    def put(self, start: int, stop: int, rows: Tensor) -> None:
        """Set these rows. The tensor must not be written to afterwards."""
        if self.data is None and stop - start == self.rows and (not self.fixed or self.varies):
            self.data = rows
            return
        self.open(rows.shape[1:], rows)[start:stop].copy_(rows)

    def see_once(self, start: int, stop: int, read: Read) -> None:
        """The rows of a slice were made of these, equal ones of equal ones, and only once."""
        places = read.places()
        assert places is not None
        if self.inverse is None:
            self.inverse = torch.arange(self.rows, device=places.device)
        into = self.inverse[start:stop]
        if start or not calls.fetch(into.view(torch.float64), places.view(torch.float64), None):
            torch.add(places, start, out=into)

    def gradient(self) -> Tensor:
        """The tensor of all gradients; zero at first."""
        if self.grad is None:
            data = self.rows_made
            self.grad = self.pool.take((self.number, "gradients"), data.shape, data)
            zero(self.grad)
        elif self.sole and not self.touched:
            zero(self.grad)
        self.touched = True
        return self.grad

    def unwritten(self, start: int, stop: int) -> Tensor | None:
        """Returns the tensor of all gradients, to be written instead of added to, if ``start`` to ``stop`` are all rows
        and no other reader will add to them; else None."""
        if not self.sole or self.touched or start or stop != self.rows or self.inverse is not None:
            return None
        if self.grad is None:
            data = self.rows_made
            self.grad = self.pool.take((self.number, "gradients"), data.shape, data)
        self.touched = True
        return self.grad


class Read:
    """Rows of an arena that a slot reads: a slice, or rows by index."""

    __slots__ = ("_places", "arena", "index", "joined", "start", "stop")

    def __init__(self, arena: Arena, start: int, stop: int, index: Tensor | None) -> None:
        self.arena, self.start, self.stop, self.index = arena, start, stop, index
        """The index of the first row; behind the last; None if they are adjacent."""
        self._places: Tensor | None = None
        self.joined: dict[tuple[int, ...], tuple[Tensor, Tensor | None]] | None = None
        """By slots: the positions of rows that are read together with these, and where those are, if equal ones are
        kept once (`ampnet.wave.kernels.parts`)."""

    def __len__(self) -> int:
        return self.stop - self.start if self.index is None else self.index.shape[0]

    def places(self) -> Tensor | None:
        """The row indices; None: the slice."""
        inverse = self.arena.inverse
        if inverse is None:
            return self.index
        if self.index is None:
            return inverse[self.start : self.stop]
        self._places = through(inverse, self.index, self._places)
        return self._places

    def rows(self, columns: tuple[int, int] | None = None) -> Tensor:
        """The rows, or some columns of them; read-only."""
        data, places = self.arena.rows_made, self.places()
        if places is None:
            rows = data[self.start : self.stop]
            return rows if columns is None else rows[..., columns[0] : columns[1]]
        if columns is None:
            return data.index_select(0, places)
        narrow, places = in_columns(data, columns, places)
        return narrow.index_select(0, places)

    @property
    def blank(self) -> bool:
        """Whether the rows are known to be zero."""
        return self.index is None and self.stop <= self.arena.blank

    @property
    def moved(self) -> bool:
        """Whether the gradient of these rows is needed."""
        return self.arena.moved and (self.index is not None or self.stop > self.arena.pumped)

    def add(self, g: Tensor, columns: tuple[int, int] | None = None) -> None:
        """Add to the gradient of these rows, or of some columns of them."""
        if not self.moved:
            return
        blank = self.arena.unwritten(self.start, self.stop) if self.index is None and columns is None else None
        if blank is not None:
            if not calls.fetch(blank, g, None):
                blank.copy_(g)
            return
        total, places = self.arena.gradient(), self.places()
        if places is None:
            into = total[self.start : self.stop]
            into = into if columns is None else into[..., columns[0] : columns[1]]
            if not calls.add_back(into, g, None):
                into.add_(g)
            return
        if g.untyped_storage().data_ptr() == total.untyped_storage().data_ptr():
            g = g.clone()  # a gradient that is passed on unchanged, to rows of the same arena
        add_back(total, g, places, columns)


def zero(x: Tensor) -> None:
    """All numbers become zero."""
    if not calls.clear(x):
        x.zero_()


def through(inverse: Tensor, index: Tensor, known: Tensor | None) -> Tensor:
    """``inverse[index]``: where rows are of which equal ones are kept once. ``known``: memory for it, if there is
    any."""
    if index.is_cuda:
        return inverse.index_select(0, index)
    out = known if known is not None and known.shape == index.shape else torch.empty_like(index)
    if not calls.fetch(out.view(torch.float64), inverse.view(torch.float64), index):
        torch.index_select(inverse, 0, index, out=out)
    return out


def fetch(out: Tensor, rows: Tensor, places: Tensor, columns: tuple[int, int] | None = None) -> None:
    """``out[i] = rows[places[i]]``, or some columns of them."""
    narrow = rows if columns is None else rows[..., columns[0] : columns[1]]
    if calls.fetch(out, narrow, places):
        return
    if columns is not None:
        rows, places = in_columns(rows, columns, places)
    torch.index_select(rows, 0, places, out=out)


def add_back(total: Tensor, g: Tensor, places: Tensor, columns: tuple[int, int] | None = None) -> None:
    """``total[places[i]] += g[i]``, or to some columns of them."""
    narrow = total if columns is None else total[..., columns[0] : columns[1]]
    if calls.add_back(narrow, g, places):
        return
    if columns is not None:
        total, places = in_columns(total, columns, places)
    total.index_add_(0, places, g.contiguous())


def in_columns(rows: Tensor, columns: tuple[int, int], places: Tensor) -> tuple[Tensor, Tensor]:
    """Columns of rows as rows of their own, and where these are: memory without gaps is read and added to faster."""
    width, narrow = rows.shape[-1], columns[1] - columns[0]
    if rows.dim() == 2 and width % narrow == 0 and columns[0] % narrow == 0 and rows.is_contiguous():
        return rows.view(-1, narrow), places * (width // narrow) + columns[0] // narrow
    return rows[..., columns[0] : columns[1]], places
