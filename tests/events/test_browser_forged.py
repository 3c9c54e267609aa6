"""Pages made of forged files, in a real browser: nothing of the file runs. Without Chromium: skipped."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ampnet.cli import main
from tests.events.mutated import CANARY, NASTY
from tests.events.test_browser import browse, pytestmark
from tests.events.test_forged import files

__all__ = ["pytestmark"]

TEXTS = [one for one in NASTY if isinstance(one, str) and "<" in one + "'" and len(one) < 1000 and one.isprintable()]


def evil(folder: Path) -> list[Path]:
    """A log and a trace in which every name and every text is one that would run."""
    out = []
    texts = iter(TEXTS * 500)
    for name in ("drawing.jsonl", "drawing.json"):
        text = "\n".join(files()[name]) + "\n"
        known = sorted(set(re.findall(r'"(linear1|linear2|relu|embedding|inline|train 1|valid 1)"', text)))
        for word in [*known, "list-reduction", "engine_reason"]:
            text = text.replace(f'"{word}"', json.dumps(next(texts)))
        for word in ("relu", "linear1", "loss", "embedding"):  # titles of boxes: "forward relu"
            text = re.sub(rf'"(forward|backward|update|collect) {word}"', json.dumps(CANARY), text)
        path = folder / name
        path.write_text(text)
        out.append(path)
    return out


def test_nothing_of_a_forged_file_runs(tmp_path: Path) -> None:
    frames = []
    for path in evil(tmp_path):
        for command in ("report", "gantt"):
            page = tmp_path / f"{path.suffix[1:]}-{command}.html"
            assert main([command, str(path), "-o", str(page)]) == 0
            assert "&lt;script&gt;" in page.read_text() or "&lt;img" in page.read_text()
            frames.append(f'<iframe src="{page.name}"></iframe>')
    picture = tmp_path / "gantt.svg"
    assert main(["gantt", str(tmp_path / "drawing.json"), "-o", str(picture)]) == 0
    frames.append(f'<iframe src="{picture.name}"></iframe>')
    (tmp_path / "canary.html").write_text(f"<title>quiet</title>{CANARY}")
    frames.append('<iframe src="canary.html"></iframe>')
    check = """<script>
    window.onload = () => {
      const frames = Array.from(document.querySelectorAll("iframe"), f => f.contentDocument);
      document.body.dataset.ran = frames.map(d => d.title === "ran").join(" ");
      document.body.dataset.ready = frames.map(d => d.body ? d.body.dataset.ready || "" : "").join(" ");
    };
    </script>"""
    outer = tmp_path / "outer.html"
    outer.write_text(f"<body>{''.join(frames)}{check}</body>")
    text = browse(outer, "--dump-dom", "--allow-file-access-from-files")
    found = re.search(r'data-ran="([^"]*)"', text)
    assert found is not None, text[-2000:]
    ran = found[1].split(" ")
    assert ran[-1] == "true", "the test can see that something runs"
    assert set(ran[:-1]) == {"false"}
    ready = re.search(r'data-ready="([^"]*)"', text)
    assert ready is not None
    assert ready[1].split(" ")[:4] == ["yes"] * 4, "the pages' own scripts ran to their ends"


def test_a_page_needs_no_escape_of_numbers(tmp_path: Path) -> None:
    """A text in place of a number is refused, so no page is made of it."""
    line = next(one for one in files()["drawing.json"] if '"instances":[' in one and '"ph":"X"' in one)
    event = json.loads(line.removesuffix(","))
    event["args"]["instances"] = {CANARY: 1}
    path = tmp_path / "run.json"
    path.write_text("\n".join(files()["drawing.json"]).replace(line, json.dumps(event) + ",") + "\n")
    for command in ("report", "gantt"):
        assert main([command, str(path), "-o", str(tmp_path / "out.html")]) == 1
    assert not (tmp_path / "out.html").exists()


@pytest.fixture(autouse=True)
def _quiet(capsys: pytest.CaptureFixture[str]) -> None:
    """What is printed is not of interest here."""
