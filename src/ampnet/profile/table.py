"""A profile as text: a line for each node and direction, then one for each process."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ampnet.profile.result import NodeProfile, ProcessProfile, Profile

SORTS: dict[str, Callable[[NodeProfile], float]] = {
    "time": lambda n: n.seconds,
    "bookkeeping": lambda n: n.bookkeeping,
    "kernels": lambda n: n.kernels,
    "merging": lambda n: n.merging,
    "waiting": lambda n: n.waited / max(1, n.messages),
    "copied": lambda n: n.copied + n.merged,
    "calls": lambda n: n.calls,
    "graph": lambda n: 0.0,
}
"""By what lines can be sorted, the most first. "graph" leaves them in the order of the graph."""

_NODES = ("node", "kind", "direction", "calls", "msgs", "rows", "us/call", "kernels", "bookk.", "watched", "ops")
_QUEUES = ("merge", "waits")
_MORE = ("MB", "us/inst", "share")
_WAVES = ("rehearse", "layout", "payloads", "check")


def table(profile: Profile, *, top: int | None = None, sort: str = "time") -> str:
    """Returns the table. ``top``: the maximal number of nodes; ``sort``: one of `SORTS`.

    ========= ==================================================================================================
    calls     batches handled in the timed stretch (operations of waves; updates made)
    msgs,     messages and rows of a call
    rows
    us/call   time of a call, divided into kernels (inside of torch operators) and bookkeeping (the rest)
    watched   the same with operators watched, as measured: the more operators (ops), the more it is off
    merge     what taking the batch from its queue took, part of the worker's loop; not where all is played in waves
    waits     how long a message waited in the queue, on average; likewise
    MB        copied by torch operators, in the node and when its batches were merged
    us/inst   microseconds of the node for each instance
    share     part of the time of its process
    ========= ==================================================================================================
    """
    timed = profile.stretches["timed"]
    processes = {node.process for node in profile.nodes}
    several, queues = len(processes) > 1, any(node.merging for node in profile.nodes)
    chosen = sorted(profile.nodes, key=SORTS[sort], reverse=True)  # stable: the graph's order where equal
    shown = chosen[:top]
    head = ["process"] * several + [*_NODES, *(_QUEUES if queues else ()), *_MORE]
    rows = [[node.process] * several + _line(node, timed.instances, queues) for node in shown]
    lines = _aligned([head, *rows], left=3 + several)
    if len(shown) < len(chosen):
        rest = chosen[len(shown) :]
        share = sum(node.share for node in rest) / len(processes)
        lines.append(f"... and {len(rest)} more line{'s' if len(rest) > 1 else ''}, {share:.1%} of the time")
    head = ["process", "seconds", "nodes", "updates", "kernels", *(_WAVES if profile.waves else ())]
    head += ["merging"] * queues + ["loop", "transport", "controller", "waiting", "timers"]
    last = _aligned([head, *(_process(one, profile.waves, queues) for one in profile.processes)], left=1)
    return "\n".join([_speeds(profile), "", *lines, "", *last])


def _speeds(profile: Profile) -> str:
    bare, timed, watched = (profile.stretches[name] for name in ("bare", "timed", "watched"))
    each = f" of {bare.records / bare.instances:,.0f} records" if bare.records > bare.instances else ""
    return (
        f"{bare.rate:,.0f} instances/s{each}; with clocks {timed.rate:,.0f}; with operators watched {watched.rate:,.0f}"
        f" ({1e6 * profile.watching.operator:.1f} us each)"
    )


def _line(node: NodeProfile, instances: int, queues: bool) -> list[str]:
    each = 1e6 / node.calls
    merge, waits = f"{node.merging * each:,.1f}", f"{1e6 * node.waited / max(1, node.messages):,.0f}"
    if not node.merging:
        merge = waits = ""
    return [
        node.node,
        node.kind,
        node.direction,
        f"{node.calls:,}",
        f"{node.messages / node.calls:,.1f}" if node.messages else "",
        "" if node.direction == "update" else f"{node.rows / node.calls:,.1f}",
        f"{node.seconds * each:,.1f}",
        f"{node.kernels * each:,.1f}",
        f"{node.bookkeeping * each:,.1f}",
        f"{1e6 * node.watched_seconds / node.watched_calls:,.1f}" if node.watched_calls else "-",
        f"{node.operators:,.1f}",
        *((merge, waits) if queues else ()),
        f"{(node.copied + node.merged) / 1e6:,.1f}",
        f"{1e6 * node.seconds / instances:,.1f}",
        f"{node.share:.1%}",
    ]


def _process(process: ProcessProfile, waves: bool, queues: bool) -> list[str]:
    parts = [process.nodes, process.updates, process.kernels]
    parts += [process.rehearsing, process.layout, process.payloads, process.checking] * waves
    parts += [process.merging] * queues
    parts += [process.loop, process.transport, process.controller, process.waiting, process.timers]
    return [process.name, f"{process.seconds:.2f}", *(f"{part / process.seconds:.1%}" for part in parts)]


def _aligned(rows: Sequence[Sequence[str]], left: int) -> list[str]:
    """Columns; the first ``left`` of them are words."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    cells = [
        [c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        for row in rows
    ]
    return ["  ".join(row).rstrip() for row in cells]
