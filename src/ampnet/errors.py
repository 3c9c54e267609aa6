"""The exceptions of the package. Each message names what was found, where, and the remedy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ampnet.lang.line import Line
    from ampnet.state import States


def a(noun: str) -> str:
    """Returns the noun with its article: ``an Adam``, ``a list``."""
    return f"an {noun}" if noun[:1].lower() in "aeiou" else f"a {noun}"


def nearest(given: str, known: Iterable[str]) -> str:
    """Returns the remedy for an unknown name: ``did you mean 'cell'?``, or the list of known names."""
    names = list(known)
    near = get_close_matches(given, names, n=1, cutoff=0.6)
    return f"did you mean '{near[0]}'?" if near else f"there are: {', '.join(names)}"


class AmpnetError(Exception):
    """Base class of the package's own exceptions."""


class GraphError(AmpnetError):
    """The graph is wrong. Raised before a run, with every fault that was found.

    ``faults`` holds one sentence per fault.
    """

    def __init__(self, faults: Sequence[str]) -> None:
        self.faults = tuple(faults)
        plural = "fault" if len(self.faults) == 1 else "faults"
        super().__init__(f"the graph has {len(self.faults)} {plural}:" + "".join(f"\n  - {f}" for f in self.faults))


class ModelError(AmpnetError):
    """A model cannot be compiled or run as written. Raised before anything runs; ``line`` is the faulty line."""

    def __init__(self, fault: str, line: Line | None = None) -> None:
        self.fault, self.line = fault, line
        super().__init__(fault if line is None else f"{line.show()}\n{fault}")


class StateError(AmpnetError):
    """A state, or a key made of it, is invalid (unknown field, negative, too large, used twice)."""


class NoSuchField(StateError, AttributeError):
    """A state has no field of that name. Also an AttributeError, so that ``hasattr`` and ``copy`` work on states."""


class PairingError(StateError):
    """A backward message has no forward partner at a node, or a forward message meets one with the same key."""


class PayloadError(AmpnetError):
    """A payload has the wrong width, dtype or number of rows."""


class LossError(AmpnetError):
    """A loss is not a finite number, or a label cannot be used."""


class DataError(AmpnetError):
    """A record of a data set cannot be used. The message names the file or data set and the record."""


class NodeError(AmpnetError):
    """An error inside a node during a run. Raised once, in the caller; ``__cause__`` is the original error.

    ``node``, ``direction`` ("forward", "backward", "update"), ``states`` (of the messages passed to the node, or of the
    faulty one alone if it is known) and ``worker`` say where.
    """

    def __init__(self, node: str, direction: str, states: States | None, worker: str, cause: BaseException) -> None:
        self.node, self.direction, self.states, self.worker = node, direction, states, worker
        at = f" at {states.describe()}" if states is not None else ""
        super().__init__(
            f"node '{node}' failed in {direction}{at} on worker '{worker}': {type(cause).__name__}: {cause}"
        )


class StallError(AmpnetError):
    """Nothing can move although instances are in flight. The message lists what each node or worker waits for."""

    def __init__(self, in_flight: Sequence[int], waits: Sequence[str]) -> None:
        self.in_flight, self.waits = tuple(in_flight), tuple(waits)
        shown = ", ".join(map(str, self.in_flight[:8])) + (", ..." if len(self.in_flight) > 8 else "")
        lines = self.waits or ("no node waits for anything: a message was consumed without an answer",)
        super().__init__(
            f"nothing can move, but {len(self.in_flight)} instance(s) are in flight ({shown}):"
            + "".join(f"\n  - {line}" for line in lines[:20])
            + (f"\n  - ... and {len(lines) - 20} more" if len(lines) > 20 else "")
        )


class PlanError(AmpnetError):
    """Two workers disagree on the layout of a wave. Raised before any row is used."""


class WorkerDied(AmpnetError):
    """A worker process is gone, or does not answer. ``worker`` names it; the run and all workers are ended."""

    def __init__(self, worker: str, how: str) -> None:
        self.worker, self.how = worker, how
        super().__init__(
            f"worker '{worker}' {how}. All workers of the run were ended; the weights are as they were then. A new "
            f"runtime on the graph can go on from there"
        )


class CheckpointError(AmpnetError):
    """A checkpoint or model file is damaged, foreign, from a newer version, or does not fit; names the file."""


class OutputError(AmpnetError, OSError):
    """A file cannot be written: it is a folder or a device, its folder is missing, the disk is full; names the file."""

    def __init__(self, message: str, errno: int | None = None) -> None:
        super().__init__(message)
        self.errno = errno


class CheckpointWarning(UserWarning):
    """A checkpoint is skipped. The message names it and the reason."""


class CallbackError(AmpnetError):
    """A callback of `ampnet.fit` raised an exception. Names the callback and its method; the run is ended."""


class EngineWarning(UserWarning):
    """A graph cannot be played in waves and is run message by message, which is slower. The message says why."""


class RestartWarning(UserWarning):
    """A worker was lost; workers were started again, and training goes on."""


class ClusterWarning(UserWarning):
    """The number of workers of a cluster has changed: machines left or joined. The message says how many there are."""


class SlowModuleWarning(UserWarning):
    """A module that is one node is computed one message at a time, which is slow. The message says why."""


class NotFiniteWarning(UserWarning):
    """A prediction or a loss is not a finite number, in inference. The message says where."""


class OutputWarning(UserWarning):
    """A file that the user asked for could not be written to its end; the run goes on. The message names the file."""


class TransportError(AmpnetError):
    """A frame cannot be sent, or bytes from another process are invalid. The message says why."""
