"""Buffer reuse: detects a loader that writes the next instance into the memory of one that is still in flight.

    yield Instance({"x": feed(buffer), ...})          position 1: payload at address A, checksum c taken
    buffer.copy_(next row)                            the loader continues
    yield Instance({"x": feed(buffer), ...})          position 2: address A again; position 1 now has another checksum

The controller reads ahead and keeps several instances in flight, and a payload is not copied until it is computed with.
An instance whose payload was overwritten would silently be trained on the data of another one. So each instance is
compared with those in flight:

    [1] read    the address of each payload, and a checksum of its content
    [2] compare an address that belongs to an instance in flight: has the content changed since that one was read?
                no: a constant that instances share, nothing wrong.   yes: a `DataError` with the remedy
    [3] done    a retired instance is dropped; its memory may be used again

**Cost.** Addresses are compared in the first `WINDOW` instances of every `EVERY`. Checksums are taken of the first
`FIRST` instances of a stream, and later of payloads at addresses that occurred twice, so a loader that makes new
tensors pays for addresses only. An address with unchanged content is checked again after 1, 3, 7, ... `RARELY` further
instances: a constant that all instances share costs almost nothing. A loader that cycles through more than `FIRST`
buffers is detected in the second cycle, not in the first.

| list reduction, inline | an instance takes | the watch takes |
|---|---|---|
| buckets of 100 sequences | 1,300 us | 2.7 us, 0.2 % |
| single sequences | 40 us | 1.9 us in a window, 0.5 us on average: 1.3 % |

A payload of more than `MOST` elements is sampled, evenly. A payload is identified by the address of its first byte:
overlapping memory that starts at another address is not detected. Nor is a change without a later instance at the same
address.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

from torch import Tensor, uint8

from ampnet.errors import DataError
from ampnet.instance import Instance

FIRST = 8
"""The number of instances of a stream whose checksums are all taken."""
WINDOW, EVERY = 1024, 8192
"""Instances with `position % EVERY < WINDOW` are watched."""
RARELY = 63
"""The maximal number of instances between two checksums at an address whose content does not change."""
MOST = 16_384
"""The maximal number of elements of a payload in a checksum."""


class BufferWatch:
    """Watches the payloads of the instances in flight of one stream.

    It holds a reference to each of them: otherwise the memory of a freed instance could be allocated for a later one at
    the same address, which would be a false alarm.
    """

    def __init__(self, stream: str) -> None:
        self.stream = stream
        self.fault: DataError | None = None
        """The error that was raised, if any."""
        self._early = FIRST
        self._at: dict[int, int] = {}
        """By address: the position of the instance in flight that was read last."""
        self._live: dict[int, tuple[Instance, list[int]]] = {}
        """By position: the instance, and the addresses of its payloads."""
        self._sums: dict[int, tuple[int, int, str, Tensor]] = {}
        """By address: a checksum, and the position, input and payload that it belongs to."""
        self._shared: dict[int, tuple[int, int]] = {}
        """Addresses used by two instances: the number of instances until the next checksum, and the following
        interval."""

    def read(self, instance: Instance, position: int) -> None:
        """Called with each instance that the loader yields. Raises `DataError` if it has overwritten one in flight."""
        if position % EVERY >= WINDOW:
            return
        at, addresses = self._at, []
        for name, given in instance.feeds.items():
            payload = given.payload
            if payload is None:
                continue
            try:
                address = payload.data_ptr()
            except RuntimeError:  # without plain memory (a sparse tensor)
                continue
            if address in at:
                self._again(address, position, name, payload)
            elif self._early:
                self._sums[address] = checksum(payload), position, name, payload  # [1]
            at[address] = position
            addresses.append(address)
        if self._early:
            self._early -= 1
        self._live[position] = instance, addresses

    def unseen(self, position: int) -> int:
        """Returns the number of instances from a position on that are not watched, so that they may be read at once."""
        at = position % EVERY
        return EVERY - at if at >= WINDOW else 0

    def _again(self, address: int, position: int, name: str, payload: Tensor) -> None:
        """[2] Check a payload at the address of an instance in flight."""
        left, pause = self._shared.get(address, (0, 0))
        taken = self._sums.pop(address, None)
        if taken is not None and taken[1] == self._at[address]:
            now = checksum(taken[3])
            if now != taken[0]:
                self._refuse(position, name, taken, now)
            left = pause = 0 if self._early else min(2 * pause + 1, RARELY)
        if left:
            left -= 1
        else:
            self._sums[address] = checksum(payload), position, name, payload
        self._shared[address] = left, pause

    def _refuse(self, position: int, name: str, taken: tuple[int, int, str, Tensor], now: int) -> None:
        before, earlier, its_name, _ = taken
        self.fault = DataError(
            f"stream '{self.stream}': instance {position + 1} (input '{name}') was written into the memory of instance "
            f"{earlier + 1} (input '{its_name}'), which is still in flight: that payload had the checksum {before:#x} "
            f"and has {now:#x} now, so instance {earlier + 1} would be computed with the wrong data. Usual cause: a "
            f"loader that fills one buffer again and again. Yield a copy: feed(payload.clone(), ...)"
        )
        raise self.fault

    def done_all(self, positions: Iterable[int]) -> None:
        """[3] Drop retired instances."""
        for position in positions if self._live else ():
            self.done(position)

    def done(self, position: int) -> None:
        """[3] Drop a retired instance."""
        live = self._live.pop(position, None)
        if live is None:
            return
        at = self._at
        for address in live[1]:
            if at.get(address) == position:
                del at[address]
                if self._sums:
                    self._sums.pop(address, None)


def checksum(payload: Tensor) -> int:
    """Returns a checksum of a payload's bytes; of a large payload, of evenly spaced elements."""
    if payload.numel() <= MOST:
        try:
            return zlib.crc32(
                payload.numpy().data
            )  # contiguous, on the CPU, of a dtype that NumPy knows: nearly always
        except (TypeError, ValueError, RuntimeError, BufferError):
            pass
    flat = payload.detach().reshape(-1)
    if len(flat) > MOST:
        flat = flat[:: len(flat) // MOST | 1]  # odd: not the same few columns of every row
    return zlib.crc32(flat.cpu().contiguous().view(uint8).numpy().data)
