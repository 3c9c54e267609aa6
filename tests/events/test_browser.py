"""The pages in a real browser: headless Chromium runs their scripts and paints them. Without Chromium: skipped."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from ampnet.events.gantt import gantt
from ampnet.events.record import Recorder
from ampnet.events.report import SECTIONS, drawing_of, report
from tests.events.pipeline import pipeline
from tests.events.replicated import replicated
from tests.events.runs import epoch, runtime, update
from tests.events.test_report import recorded

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next((found for found in map(shutil.which, NAMES) if found), None)

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason=f"chromium is not installed (looked for {', '.join(NAMES)})"),
    pytest.mark.timeout(300),
]


def browse(page: Path, *asked: str) -> str:
    """Open a page, let its scripts run, and return what is printed."""
    assert CHROMIUM is not None
    home = page.parent / "browser"
    quiet = (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        "--no-first-run",
    )
    offline = ("--host-resolver-rules=MAP * ~NOTFOUND", "--disable-background-networking")
    command = [CHROMIUM, *quiet, *offline, f"--user-data-dir={home}", "--window-size=1280,1600"]
    command += ["--virtual-time-budget=5000", *asked, page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    if done.returncode != 0:
        pytest.skip(f"chromium does not start here (exit code {done.returncode}): {done.stderr[-300:]}")
    return done.stdout


def dom(page: Path) -> str:
    """The page after its scripts have run."""
    # A script that fails stops before the last line, which marks the body; an error handler tells which it was.
    watched = page.with_name(f"watched-{page.name}")
    telling = "<script>onerror = text => { document.documentElement.dataset.error = text; };</script><style>"
    watched.write_text(page.read_text(encoding="utf-8").replace("<style>", telling, 1), encoding="utf-8")
    text = browse(watched, "--dump-dom")
    assert "data-error" not in text.partition("<head>")[0], text[:500]
    assert re.search(r'<body[^>]* data-ready="yes"', text), "the script did not come to its end"
    return text


def looks_painted(page: Path) -> None:
    """A screenshot is not blank: some of it is of many colours, and not nearly all of it."""
    from matplotlib.image import imread

    picture = page.with_suffix(".png")
    browse(page, f"--screenshot={picture}")
    pixels = imread(picture)[..., :3].reshape(-1, 3)
    inked = (pixels < 0.97).any(axis=1).mean()
    assert 0.01 < inked < 0.7
    assert len({tuple(p) for p in (pixels[::7] * 255).round().astype(int).tolist()}) > 20


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Gantt chart of four workers, and the report of a real run, with replicas of a made-up one."""
    folder = tmp_path_factory.mktemp("pages")
    gantt(pipeline(instances=300), folder / "gantt.html", title='made "up" <b>')
    recorder = Recorder()
    run = runtime(update(3), listeners=[recorder], max_active_keys=4)
    run.settings |= {"workload": "list-reduction", "graph": drawing_of(run.graph)}
    streams = [epoch(400, name="train 1"), epoch(80, 1, train=False, name="valid 1")]
    run.run(streams, on_turn=recorder.turn, turn_seconds=0.0)
    shown = recorder.record()
    shown.totals = replace(shown.totals, replicas=recorded(replicated()).totals.replicas)
    report(shown, folder / "report.html")
    return folder


def test_the_gantt_page_runs(pages: Path) -> None:
    text = dom(pages / "gantt.html")
    assert text.count('class="box"') > 300
    assert re.search(r"<text [^>]*>\d+</text>", text), "a number in a box"
    assert re.search(r'<span class="buttons">', text), "buttons are shown by the script"
    assert "ms since " in text


def test_the_gantt_page_zooms(pages: Path) -> None:
    """Half the stretch after a click on +; all as before after a click on reset."""
    clicks = """
    const [more, , back] = document.querySelectorAll("button");
    const unit = () => document.querySelector(".unit").textContent;
    const wide = () => document.querySelector(".box rect").getAttribute("width");
    const before = [unit(), wide()];
    more.click();
    const zoomed = [unit(), wide()];
    back.click();
    document.body.dataset.zoom = [before[0] !== zoomed[0], Math.round(10 * zoomed[1] / before[1]), unit() === before[0],
      wide() === before[1]].join(" ");
    document.body.dataset.ready"""
    page = pages / "zoom.html"
    page.write_text((pages / "gantt.html").read_text().replace("document.body.dataset.ready", clicks, 1))
    assert 'data-zoom="true 20 true true"' in dom(page)


def test_the_gantt_page_is_painted(pages: Path) -> None:
    looks_painted(pages / "gantt.html")


def test_the_report_runs(pages: Path) -> None:
    text = dom(pages / "report.html")
    for name in SECTIONS:
        assert f'<section id="{name}">' in text
    assert text.count("<table") >= 4
    assert 'class="graph"' in text
    assert 'data-sorts="yes"' in text


def test_the_report_is_painted(pages: Path) -> None:
    looks_painted(pages / "report.html")


def test_the_report_reads_without_scripts(pages: Path) -> None:
    page = pages / "plain.html"
    page.write_text(re.sub(r"<script>.*?</script>", "", (pages / "report.html").read_text(), flags=re.S))
    looks_painted(page)
