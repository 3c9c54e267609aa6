"""Far: measuring inside of worker processes.

A worker forks from the caller's process, so objects made before exist on both sides. Each has a **sheet**, a block of
shared memory: the caller writes an order to it (bare, timed, watched), the worker its measurements. A worker reads its
sheet when it answers a query, at the end of every run and whenever its counts are requested:

    caller    order "timed", ask ──>            run ...            order "bare", ask ──>  read the sheets
    worker                     hooks in, answer  ...  works  ...        write, hooks out, answer
"""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Callable, Sequence
from typing import Any

from ampnet.errors import AmpnetError
from ampnet.profile.hooks import Hooks
from ampnet.profile.meter import LOOP, Cell, Costs, Meter, Watch
from ampnet.profile.result import Record
from ampnet.runtime.host import Host

BARE, TIMED, WATCHED = "bare", "timed", "watched"
ORDERS = (BARE, TIMED, WATCHED)
"""The kinds of intervals of a run."""
_SIZE = 16 << 20
"""Bytes of a sheet. Only what is written takes memory."""
_HEAD = struct.Struct("qq")


class Measuring:
    """Hooks in one process, from now to `end`. ``put`` installs them; ``base`` is the time outside all sections."""

    def __init__(self, process: str, base: str, costs: Costs, order: str, put: Callable[[Hooks], None]) -> None:
        self.process = process
        self.meter = Meter(base, costs)
        self._hooks = Hooks(self.meter)
        put(self._hooks)
        self._watch = Watch(self.meter) if order == WATCHED else None
        if self._watch is not None:
            self._watch.__enter__()

    def end(self) -> Record:
        """Take the hooks out."""
        seconds = self.meter.stop()
        if self._watch is not None:
            self._watch.__exit__(None, None, None)
        self._hooks.undo()
        return Record(self.process, seconds, self.meter.cells)


class Sheet:
    """Memory shared by the caller and one worker."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _SIZE)
        self.order = BARE

    @property
    def order(self) -> str:
        """The worker's order, which it follows from its next answer on."""
        number, _ = _HEAD.unpack_from(self._memory)
        return ORDERS[number]

    @order.setter
    def order(self, order: str) -> None:
        _HEAD.pack_into(self._memory, 0, ORDERS.index(order), 0)

    def write(self, record: Record) -> None:
        """In the worker: what was measured. The order stays as it is."""
        cells = [[*key, cell.plain()] for key, cell in record.cells.items()]
        text = json.dumps([record.process, record.seconds, cells]).encode()
        if len(text) > _SIZE - _HEAD.size:
            raise AmpnetError(f"a profile of {len(cells)} cells does not fit into {_SIZE >> 20} MB")
        self._memory[_HEAD.size : _HEAD.size + len(text)] = text
        _HEAD.pack_into(self._memory, 0, ORDERS.index(self.order), len(text))

    def read(self) -> Record:
        """In the caller: the same."""
        _, length = _HEAD.unpack_from(self._memory)
        process, seconds, cells = json.loads(self._memory[_HEAD.size : _HEAD.size + length])
        return Record(process, seconds, {(node, what): Cell.of(cell) for node, what, cell in cells})


def attend(sheets: Sequence[Sheet], costs: Costs) -> Callable[[Host], None]:
    """Called in a worker process before it serves: read its sheet from now on, at every answer."""

    def begin(host: Host) -> None:
        sheet, answer = sheets[host.number], host._answer
        doing: list[Any] = [BARE, None]

        def looking(token: int) -> None:
            order = sheet.order
            if order != doing[0]:
                if doing[1] is not None:
                    sheet.write(doing[1].end())
                measuring = None if order == BARE else Measuring(host.name, LOOP, costs, order, lambda h: h.host(host))
                doing[:] = order, measuring
            answer(token)

        host._answer = looking  # type: ignore[method-assign]

    return begin
