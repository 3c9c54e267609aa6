"""The pages in a real browser: headless Chromium runs their scripts and paints them. Without Chromium: skipped."""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from ampnet import Inline, Instance, Stream
from ampnet.events.gantt import gantt
from ampnet.events.live import Live
from ampnet.events.live.page import shell
from ampnet.events.record import Recorder
from ampnet.events.report import SECTIONS, drawing_of, report
from ampnet.models import by_hand
from tests.events.pipeline import pipeline
from tests.events.replicated import replicated
from tests.events.runs import HIDDEN, epoch, instances, runtime, update
from tests.events.test_report import recorded

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next((found for found in map(shutil.which, NAMES) if found), None)

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason=f"chromium is not installed (looked for {', '.join(NAMES)})"),
    pytest.mark.timeout(300),
]


def browse(page: Path | str, *asked: str, home: Path | None = None, budget: str = "--virtual-time-budget=5000") -> str:
    """Open a page, a file or an address, let its scripts run, and return what is printed."""
    assert CHROMIUM is not None
    home = page.parent / "browser" if isinstance(page, Path) else home
    quiet = (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        "--no-first-run",
    )
    offline = ("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--disable-background-networking")
    command = [CHROMIUM, *quiet, *offline, f"--user-data-dir={home}", "--window-size=1280,1600"]
    command += [*([budget] if budget else []), *asked, page.as_uri() if isinstance(page, Path) else page]
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


def overflow(page: Path, width: int = 390) -> str:
    """How wide a page is on a phone, and what sticks out of it. A browser's window is at least 500 pixels wide, a
    frame is not."""
    frame = page.with_name(f"frame-{page.name}")
    frame.write_text(
        f"""<iframe style="border: 0; width: {width}px; height: 800px" src="{page.name}"></iframe><script>
        document.querySelector("iframe").onload = event => {{
          const inner = event.target.contentDocument, page = inner.documentElement;
          const hidden = e => e.closest(".wide, figure.gantt, svg") !== null && !e.matches("svg.chart");
          const out = Array.from(inner.body.querySelectorAll("*"))
            .filter(e => !hidden(e) && e.getBoundingClientRect().right > {width} + 0.5);
          document.body.dataset.wide = [page.scrollWidth, ...out.map(e => e.tagName + "." + e.className)].join(" ");
        }};</script>"""
    )
    text = browse(frame, "--dump-dom", "--allow-file-access-from-files")
    found = re.search(r'data-wide="([^"]*)"', text)
    assert found is not None
    return found[1]


def brightness(page: Path, *asked: str) -> tuple[float, float]:
    """Of a screenshot: how bright most of it is, and how much of it differs from that."""
    from matplotlib.image import imread

    picture = page.with_suffix(".png")
    browse(page, f"--screenshot={picture}", *asked)
    light = imread(picture)[..., :3].mean(axis=-1)
    ground = float(light[2, 2])
    return ground, float((abs(light - ground) > 0.25).mean())


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Gantt chart of four workers, and the report of a real run, with replicas of a made-up one."""
    folder = tmp_path_factory.mktemp("pages")
    gantt(pipeline(instances=300), folder / "gantt.html", title='made "up" <b>')
    recorder = Recorder()
    run = runtime(update(3), listeners=[recorder], max_active_keys=4)
    run.settings |= {"workload": "list-reduction", "graph": drawing_of(run.graph)}
    streams = [epoch(400, name="train 1"), epoch(80, 1, train=False, name="valid 1")]
    run.run(streams, turn_seconds=0.0)
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


@pytest.mark.parametrize("name", ["gantt.html", "report.html"])
def test_a_page_fits_on_a_phone(name: str, pages: Path) -> None:
    assert overflow(pages / name) == "390"


@pytest.mark.parametrize("name", ["gantt.html", "report.html"])
def test_a_page_follows_the_system_to_dark(name: str, pages: Path) -> None:
    light, inked = brightness(pages / name, "--blink-settings=preferredColorScheme=1")
    assert light > 0.97
    dark, drawn = brightness(pages / name, "--blink-settings=preferredColorScheme=0")
    assert dark < 0.15
    assert drawn > 0.3 * inked, "text and charts can be told from the ground"


def test_the_live_page_follows_a_run_to_its_end(tmp_path: Path) -> None:
    """The browser opens it while the run goes on. The run ends when the page has asked for a few pictures."""
    graph = by_hand.build(HIDDEN)
    with Live(graph, every=0.1) as live:

        def endless() -> Iterator[Instance]:
            for seed in count():
                yield from instances(40, seed)
                if live._version > 4 or over.is_set():
                    return

        def train() -> None:
            with Inline(graph, update=update(3), max_active_keys=4, listeners=[live]) as run:
                run.settings["workload"] = "list <b>reduction"
                run.run([Stream(endless(), True, "train 1")])
            live.close()

        over = threading.Event()
        running = threading.Thread(target=train)
        running.start()
        try:
            text = browse(live.address, "--dump-dom", home=tmp_path / "browser")
        finally:
            over.set()
            running.join()
    assert 'data-ready="yes"' in text
    assert int(re.search(r'data-version="(\d+)"', text)[1]) > 4  # type: ignore[index]
    assert re.search(r'id="state" data-is="ended"><i></i><span>run ended</span>', text)
    assert "list &lt;b&gt;reduction</h1>" in text
    assert text.count('class="box"') > 5, "the last picture is kept"
    assert text.count('class="curves"') >= 3
    for name in ("learning", "timeline", "workers", "nodes", "staleness"):
        assert re.search(rf'<section id="{name}"><h2>', text), "shown"
    shares = re.findall(r'<g id="share\d+">.*?>([\d.]+) %</text>', text, flags=re.S)
    assert 50 < sum(map(float, shares)) < 102


@pytest.fixture(scope="module")
def live_page(pages: Path) -> Path:
    """The page as it is sent, of a run that is over."""
    graph = by_hand.build(HIDDEN)
    with Live(graph, epochs=3, records={"train": 400}) as live:
        with Inline(graph, update=update(3), max_active_keys=4, listeners=[live]) as run:
            run.settings["workload"] = "list-reduction"
            run.run([epoch(400, name="train 1"), epoch(80, 1, train=False, name="valid 1")], turn_seconds=0.0)
        live._watch.running = False
        page = pages / "live.html"
        page.write_text(shell(live._picture, live._state(True)[1], ""), encoding="utf-8")
    return page


def test_the_live_page_fits_on_a_phone(live_page: Path) -> None:
    assert overflow(live_page) == "390"


def test_the_live_page_follows_the_system_to_dark(live_page: Path) -> None:
    assert brightness(live_page, "--blink-settings=preferredColorScheme=1")[0] > 0.97
    dark, drawn = brightness(live_page, "--blink-settings=preferredColorScheme=0")
    assert dark < 0.15
    assert drawn > 0.01
