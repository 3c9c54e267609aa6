"""The event log and its readers: staleness, utilisation, replicas, pictures, and checks of the promises."""

from ampnet.events.check import PromiseBroken, Violation, assert_kept, check
from ampnet.events.log import (
    Backward,
    Begin,
    Epoch,
    Event,
    EventLog,
    Forward,
    Listener,
    LogWriter,
    Operation,
    Played,
    Pump,
    Rest,
    Retire,
    Return,
    Synced,
    Updated,
    Wave,
    Worked,
    read_log,
)
from ampnet.events.perfetto import PerfettoWriter
from ampnet.events.record import Recorder, RunRecord
from ampnet.events.replicas import GroupUse, ReplicaMeter, ReplicaUse
from ampnet.events.run_file import read_run
from ampnet.events.staleness import Staleness, StalenessMeter, staleness_of
from ampnet.events.utilisation import NodeUse, UpdateUse, UtilisationMeter, WorkerUse

__all__ = [
    "Backward",
    "Begin",
    "Epoch",
    "Event",
    "EventLog",
    "Forward",
    "GroupUse",
    "Listener",
    "LogWriter",
    "NodeUse",
    "Operation",
    "PerfettoWriter",
    "Played",
    "PromiseBroken",
    "Pump",
    "Recorder",
    "ReplicaMeter",
    "ReplicaUse",
    "Rest",
    "Retire",
    "Return",
    "RunRecord",
    "Staleness",
    "StalenessMeter",
    "Synced",
    "UpdateUse",
    "Updated",
    "UtilisationMeter",
    "Violation",
    "Wave",
    "Worked",
    "WorkerUse",
    "assert_kept",
    "check",
    "read_log",
    "read_run",
    "staleness_of",
]
