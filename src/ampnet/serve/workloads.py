"""Workloads: what `ampnet serve` and ``--serve`` know of a workload beyond its graph: texts, and words for the page."""

from __future__ import annotations

from typing import Any

from ampnet.experiments.settings import Training
from ampnet.experiments.workload import Facts, Workload
from ampnet.serve.form import Answer


def described(workload: Workload[Any], settings: Training, facts: Facts) -> dict[str, Any]:
    """Returns arguments of `Serving`."""

    def tell(text: str) -> tuple[tuple[Any, ...], Answer]:
        question = workload.told(text, settings, facts)
        return question.arguments, lambda result: dict(question.answer(result).data)

    texts = {"tell": tell, "told": workload.posted} if workload.posted else {}
    about = f"{workload.about[:1].upper()}{workload.about[1:]}."
    return {"name": f"ampnet: {workload.name}", "about": about, **texts}
