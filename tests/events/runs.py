"""Small list-reduction runs whose event logs the tests of this folder read.

They pass messages, unless ``waves=True`` is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
import torch

from ampnet import Inline, Instance, Stream, Update
from ampnet.data.list_reduction import generate
from ampnet.events.log import Event, EventLog, Listener
from ampnet.models import by_hand

HIDDEN = 8
SCHEDULES = ("sweep", "backward-first", "fifo", "random")


def instances(count: int = 60, seed: int = 0, bucket: int = 4) -> Iterator[Instance]:
    return by_hand.instances(generate(count, seed), bucket, np.random.default_rng(seed), HIDDEN)


def epoch(count: int = 60, seed: int = 0, *, train: bool = True, name: str = "train", bucket: int = 4) -> Stream:
    return Stream(instances(count, seed, bucket), train, name)


def update(frequency: int = 1, count: Literal["messages", "instances"] = "messages") -> Update:
    return Update(partial(torch.optim.SGD, lr=1e-3), frequency, count)


def runtime(
    policy: Update | None, *, listeners: Sequence[Listener] = (), waves: bool = False, **settings: Any
) -> Inline:
    return Inline(by_hand.build(HIDDEN), update=policy, listeners=listeners, waves=waves, **settings)


def record(
    streams: Sequence[Stream],
    policy: Update | None,
    *,
    together: bool = False,
    barrier: bool = False,
    **settings: Any,
) -> list[Event]:
    """The events of one run."""
    log = EventLog()
    runtime(policy, listeners=[log], **settings).run(streams, together=together, barrier=barrier)
    return log.events
