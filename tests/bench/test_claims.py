"""What README.md claims rests on results: each number has a file behind it, and says what the file says.

The generated part is compared as a whole (`tests/test_readme.py`); here are the claims in the prose, and that there are
no others.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bench.claims import CLAIMS, Claim, unfounded
from bench.readme import BEGIN, END, README, RESULTS, WORKLOADS, between, fastest, read, written

from bench import readme

TEXT = README.read_text(encoding="utf-8")


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.file)
def test_a_claim_stands_in_the_page_and_follows_from_its_file(claim: Claim) -> None:
    matches = claim.found(TEXT)
    assert matches, f"README.md does not say {claim.says!r}: take the claim out of bench/claims.py"
    for match in matches:
        assert claim.kept(match), f"{match[0]!r} does not follow from bench/results/{claim.file}, {claim.keys}"


def test_every_number_rests_on_something() -> None:
    assert list(unfounded(TEXT)) == [], "add a claim or a setting to bench/claims.py, or take the number out"


@pytest.mark.parametrize(
    "said", ["It is 3.7 times as fast.", "It takes 12 ms.", "Up to 1,000 trees.", "x\n```\nmake fast   # in 3 s\n```\n"]
)
def test_a_new_number_is_found(said: str) -> None:
    assert len(list(unfounded(f"{said}\n{TEXT}"))) == 1


def test_names_code_and_links_are_no_claims() -> None:
    assert list(unfounded(f"`x = 3` in [qm9](docs/a2.md), babi15, x86-64\n{TEXT}")) == []


def test_a_result_that_changed_changes_the_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for path in RESULTS.rglob("*.json"):
        copy = tmp_path / path.relative_to(RESULTS)
        copy.parent.mkdir(exist_ok=True)
        copy.write_text(path.read_text())
    monkeypatch.setattr(readme, "RESULTS", tmp_path)
    assert written(TEXT) == TEXT
    result = json.loads((tmp_path / "qm9.json").read_text())
    for line in result["lines"]:
        line["best"] *= 2 if line["row"] == "ours" else 1
    (tmp_path / "qm9.json").write_text(json.dumps(result))
    assert written(TEXT) != TEXT
    with pytest.raises(ValueError, match="no place for the table"):
        written("nothing")
    with pytest.raises(ValueError, match="make train"):
        written(BEGIN + END)


def _result(cores: int, **rates: float) -> dict[str, Any]:
    lines = [
        {"row": row.replace("_", " "), "best": rate, "cores": int(*(n for n in row.split("_") if n.isdigit())) or 1}
        for row, rate in rates.items()
    ]
    return {"lines": lines, "machine": {"cores": cores, "processor": "a processor", "gpu": "board", "torch": "3"}}


def test_other_machines_are_spoken_of_as_soon_as_there_are_results(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for path in RESULTS.glob("*.json"):
        (tmp_path / path.name).write_text(path.read_text())
    monkeypatch.setattr(readme, "RESULTS", tmp_path)
    many = _result(16, ours_16_replicas=90.0, torch_sparse_8_threads=9.0, torch_sparse_16_threads=10.0, torch_eager=8.0)
    for folder, name, result in (
        ("16", "qm9", many),
        ("h200", "qm9-cuda", _result(16, ours=30.0, pyg=20.0, torch=10.0)),
    ):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{name}.json").write_text(json.dumps(result))
    page = written(TEXT).replace("\n", " ")
    assert "On 16 cores, 16 replicas are 9.00 times as fast as the fastest torch program" in page
    assert "On one board, in one process, it is 1.50 times torch" in page


def test_the_fastest_row_of_a_kind() -> None:
    lines = [
        {"row": "torch sparse 1 thread", "cores": 1, "best": 5.0},
        {"row": "torch sparse 2 threads", "cores": 2, "best": 7.0},
        {"row": "torch_manual hogwild2", "cores": 2, "best": 9.0},
        {"row": "jax 2 threads", "cores": 2, "best": 11.0},
    ]
    assert fastest(lines, readme.TORCH, 1) == 5
    assert fastest(lines, readme.TORCH, 2) == 9
    assert fastest(lines, readme.JAX, 1) is None
    assert fastest(lines, readme.TORCH, most=1) == 5
    assert between([0.5, 0.504]) == "0.50"
    assert between(iter([2.0, 1.0])) == "1.00 to 2.00"


def test_the_results_of_the_workloads_are_of_one_commit() -> None:
    """A file that was measured again by itself is not comparable with the others."""
    for folder in (RESULTS, RESULTS / "16", RESULTS / "h200"):
        names = {path.name for name in [*WORKLOADS, "babi15-100", "permuted-layers", "growth"] for path in
                 (folder / f"{name}.json", folder / f"{name}-cuda.json") if path.exists()}  # fmt: skip
        commits = {read(f"{folder.relative_to(RESULTS)}/{name}")["machine"].get("commit") for name in names}
        assert len(commits) <= 1, f"{folder.name}: {commits}"
