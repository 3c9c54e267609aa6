"""One run in a process of its own: ``python -m bench.gpt.turn SETTING_AS_JSON PARENT`` prints its result as JSON."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass
from typing import Any

import torch
from examples.gpt.data import Corpus, library
from examples.gpt.model import Sizes, next_character

from bench.gpt import asynchronous, pipelining
from bench.gpt.orphans import end_with
from bench.gpt.settings import Setting, Trace

_TOGETHER = 16
"""Held-out sequences in one call of the model."""


@dataclass(frozen=True, slots=True)
class Point:
    """A point of the curve."""

    tokens: int
    """Trained on since the beginning."""
    seconds: float
    """Since the end of the warm-up."""
    loss: float
    """Mean cross entropy of a held-out character."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What came of a run."""

    tokens_per_second: float
    """From the end of the warm-up until all updates are made."""
    bubble: float
    """The share of the stages' time in which they did not compute."""
    busy: list[float]
    """Of each stage: the share of the time in which it computed."""
    staleness: float
    """Mean number of updates between the forward and the backward of a microbatch."""
    curve: list[Point]


def run(setting: Setting, corpus: Corpus | None = None) -> Turn:
    """Trains, then measures the held-out loss of all snapshots."""
    torch.set_num_threads(1)  # before anything is computed: stages are forked from this process
    corpus = library() if corpus is None else corpus
    contender = asynchronous if setting.contender.startswith("ours") else pipelining
    trace = contender.run(setting, corpus)
    marks, seconds = setting.marks(), trace.seconds[-1]
    busy = [one / seconds for one in trace.busy]
    curve = [
        Point(mark * setting.tokens, at, loss)
        for mark, at, loss in zip(marks, trace.seconds, losses(setting, trace, corpus), strict=True)
    ]
    speed = (marks[-1] - marks[0]) * setting.tokens / seconds
    return Turn(speed, 1 - sum(busy) / len(busy), busy, trace.staleness, curve)


def losses(setting: Setting, trace: Trace, corpus: Corpus) -> list[float]:
    """Returns the held-out loss of each snapshot, computed with all cores."""
    plain = setting.model().plain()
    tokens, targets = corpus.held_out(setting.held_out, setting.sizes.context)
    before = torch.get_num_threads()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    try:
        with torch.no_grad():
            return [_loss(plain, weights, tokens, targets) for weights in trace.weights]
    finally:
        torch.set_num_threads(before)


def _loss(plain: torch.nn.Module, weights: list[torch.Tensor], tokens: torch.Tensor, targets: torch.Tensor) -> float:
    for parameter, weight in zip(plain.parameters(), weights, strict=True):
        parameter.copy_(weight)
    found = [
        next_character(plain(x), y) for x, y in zip(tokens.split(_TOGETHER), targets.split(_TOGETHER), strict=True)
    ]
    return float(torch.cat(found).mean())


def setting_of(data: dict[str, Any]) -> Setting:
    """Returns the setting that was written as JSON."""
    return Setting(**{**data, "sizes": Sizes(**data["sizes"])})


if __name__ == "__main__":
    end_with(int(sys.argv[2]))
    print(json.dumps(asdict(run(setting_of(json.loads(sys.argv[1]))))))
