"""The settings of a run: engine, workers and versions first, and every setting at the end of the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from ampnet.events.gantt import natural
from ampnet.events.record import RunRecord
from ampnet.events.report.tables import table
from ampnet.graph import CONTROLLER

LISTED = 4
"""Up to this number workers or replicas are named one by one."""


def workers_of(run: RunRecord) -> dict[str, dict[str, float]]:
    """Returns the seconds of each worker by kind of work, without the controller."""
    return {name: of for name, of in run.totals.workers.items() if name != CONTROLLER}


def engine_of(run: RunRecord) -> str:
    """Returns the engine, "waves" or "messages"; empty if it is unknown."""
    return str(run.settings.get("engine") or ("waves" if run.totals.waves else ""))


def how(run: RunRecord) -> str:
    """Returns the engine and its reason, the workers, and the versions of packages."""
    settings, totals = run.settings, run.totals
    rows: list[list[str]] = []
    engine = engine_of(run)
    if engine:
        reason = settings.get("engine_reason")
        rows.append(["engine", f"{engine} ({reason})" if reason else engine])
    if totals.waves:
        mean = totals.wave_instances / totals.waves
        rows.append(["waves", f"{totals.waves:,}, {mean:,.1f} instances each on average"])
    names = sorted(workers_of(run), key=natural)
    if names:
        some = ", ".join(names) if len(names) <= LISTED else f"{names[0]} to {names[-1]}"
        rows.append(["workers", f"{len(names)}: {some}"])
    if totals.in_flight:
        most = settings.get("max_active_keys")
        rows.append(["instances in flight", f"{totals.in_flight} at most" + (f", of {most}" if most else "")])
    versions = settings.get("versions")
    if isinstance(versions, Mapping):
        rows.append(["versions", ", ".join(f"{name} {_plain(version)}" for name, version in versions.items())])
    return table(["", ""], [[escape(cell) for cell in row] for row in rows], words=2) if rows else ""


def settings(run: RunRecord) -> str:
    """Returns all settings of the run."""
    rows = []
    for name, value in run.settings.items():
        if name == "updates" and isinstance(value, Mapping):
            rows += [[f"updates of {node}", text] for node, text in _together(run, value).items()]
        elif name == "replicas" and isinstance(value, Sequence):
            rows += [[f"replicas of {one.get('node')}", _group(one)] for one in value if isinstance(one, Mapping)]
        elif name == "versions" and isinstance(value, Mapping):
            rows += [[f"version of {what}", _plain(version)] for what, version in value.items()]
        elif isinstance(value, Mapping) and name != "graph":
            rows.append([name, ", ".join(f"{k} {v}" for k, v in _together(run, value).items()) or "none"])
        elif name != "graph":
            rows.append([name, _plain(value)])
    return table(["setting", "value"], [[escape(c) for c in row] for row in rows], words=2) if rows else ""


def _together(run: RunRecord, values: Mapping[str, Any]) -> dict[str, str]:
    """Returns the setting of each node as text; more than a few replicas of a node are combined."""
    out = {str(name): _plain(value) for name, value in values.items() if value is not None}
    for group in run.totals.replicas.values():
        members = [one.node for one in group.replicas if one.node in out]
        if len(members) > LISTED:
            texts = list(dict.fromkeys(out.pop(member) for member in members))
            shown = texts[0] if len(texts) == 1 else f"{texts[0]} … {texts[-1]}"
            out[f"{group.group} ({len(members)} replicas)"] = shown
    return out


def _group(given: Mapping[str, Any]) -> str:
    members = list(given.get("members") or ())
    if len(members) > LISTED:
        given = {**given, "members": f"{members[0]} … {members[-1]}"}
    return _plain(given)


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {_plain(v)}" for k, v in value.items() if v is not None) or "none"
    if isinstance(value, (list, tuple)):
        return " ".join(map(_plain, value))
    return "none" if value is None else str(value)
