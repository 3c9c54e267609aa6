"""Pictures of `bench.paper`: what they show, and that labels do not collide."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from bench.paper.draw.convergence import columns, convergence
from bench.paper.draw.grid import grid
from bench.paper.draw.sixteen import sixteen
from bench.paper.draw.studies import frequency, staleness
from bench.paper.draw.style import COLOURS, nice, number, shades, spread
from bench.paper.figures import PAPER
from bench.paper.picture import paint_all, pictures
from bench.paper.plan import GRID_FREQUENCIES, GRID_KEYS, RUNS
from bench.paper.results import Results, read
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from tests.bench.papers import store


def texts(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def _shown(label: Text) -> bool:
    return label.get_visible() and bool(label.get_text())


def drawn(figure: Figure) -> None:
    """Render, and see that tick labels of an axis do not overlap."""
    figure.draw_without_rendering()
    for axes in figure.axes:
        if not axes.get_visible():
            continue
        for axis, sides in ((axes.xaxis, ("x0", "x1")), (axes.yaxis, ("y0", "y1"))):
            low, high = sorted(axis.get_view_interval())
            ticks = [tick for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
            boxes = [tick.label1.get_window_extent() for tick in ticks if _shown(tick.label1)]
            spans = sorted((getattr(box, sides[0]), getattr(box, sides[1])) for box in boxes)
            assert all(before[1] < after[0] for before, after in pairwise(spans))


# -- style


@given(st.lists(st.floats(0, 1), max_size=9), st.floats(0.01, 0.2))
def test_labels_are_moved_apart_and_no_further_than_they_must(places: list[float], gap: float) -> None:
    moved = spread(places, gap)
    assert len(moved) == len(places)
    assert all(after - before >= gap - 1e-9 for before, after in pairwise(sorted(moved)))
    assert sum(moved) == pytest.approx(sum(places), abs=1e-6)
    order = [i for _, i in sorted((place, i) for i, place in enumerate(places))]
    assert order == sorted(range(len(moved)), key=lambda i: moved[i])
    if all(after - before >= gap for before, after in pairwise(sorted(places))):
        assert moved == pytest.approx(places)


@given(st.floats(1e-3, 1e5), st.floats(1.05, 1e4), st.integers(3, 9))
def test_round_numbers_lie_in_between_and_are_few(low: float, factor: float, most: int) -> None:
    found = nice(low, low * factor, most)
    assert len(found) <= most
    assert found == sorted(set(found))
    assert all(low * 0.999 <= value <= low * factor * 1.001 for value in found)


def test_round_numbers() -> None:
    assert nice(1.6, 3.4) == [2.0, 2.5, 3.0]
    assert nice(3, 80) == [5, 10, 20, 50]
    assert [number(value) for value in (0.5, 12.0, 1200.0)] == ["0.5", "12", "1,200"]
    assert len(set(shades(4))) == 4
    assert set(COLOURS) == {run.way for run in RUNS}


# -- accuracy against time


def test_a_panel_for_each_number_in_flight_and_one_for_replicas(tmp_path: Path) -> None:
    for name in ("waves-1", "waves-16", "workers2-16", "replicas2-4", "torch-1", "torch-2"):
        speed = 5.0 if name == "torch-2" else 10.0
        for seed in (0, 1):
            store(tmp_path, f"list-reduction-{name}", [0.8, 0.9, 0.98], seed=seed, epoch_seconds=speed)
    paper, results = PAPER["list-reduction"], read(tmp_path)
    found = columns(paper, results)
    assert [panel.title for panel in found] == ["1 in flight", "16 in flight", "2 replicas, 4 in flight"]
    assert [one.run.label() for one in found[1].runs] == ["synchronous", "2 workers", "torch, 2 threads"]
    figure = convergence(paper, results)
    drawn(figure)
    times, epochs = figure.axes[1], figure.axes[4]
    wanted = ["the paper, 16 cores: 64.9 s", "torch, 2 threads: 15.0 s", "2 workers: 30.0 s", "synchronous: 30.0 s"]
    assert texts(times) == wanted
    assert texts(epochs)[:2] == ["the paper, 16 cores: 9", "torch, 2 threads: 3"]
    assert times.get_title(loc="left") == "16 in flight"
    assert len(times.lines) == 7  # three runs with two seeds, and the target
    assert times.get_xlim() == figure.axes[0].get_xlim()
    assert times.get_ylim()[0] < 80 - 5  # room for the list


def test_no_line_is_cut_off(tmp_path: Path) -> None:
    """Once the first panel, without a line, set the limits of all."""
    store(tmp_path, "mnist-waves-1", [0.9, 0.98], alone=False)
    store(tmp_path, "mnist-waves-4", [0.9, 0.98])
    store(tmp_path, "mnist-replicas2-8", [0.7, 0.8, 0.85, 0.98], seed=0, epoch_seconds=90)
    store(tmp_path, "mnist-replicas2-8", [0.6, 0.98], seed=1)
    figure = convergence(PAPER["mnist"], read(tmp_path))
    drawn(figure)
    for axes in figure.axes:
        for line in (line for line in axes.lines if line.get_linestyle() == "-"):
            for values, (low, high) in ((line.get_xdata(), axes.get_xlim()), (line.get_ydata(), axes.get_ylim())):
                assert low <= min(values)
                assert max(values) <= high


def test_the_error_of_qm9_falls_and_its_list_is_at_the_top(tmp_path: Path) -> None:
    store(tmp_path, "qm9-waves-16", [9.0, 6.0, 4.5])
    store(tmp_path, "qm9-workers2-16", [9.0, 6.0, 5.0], alone=False)
    figure = convergence(PAPER["qm9"], read(tmp_path))
    drawn(figure)
    times, epochs = figure.axes
    assert texts(times) == ["synchronous: 30.0 s", "2 workers: not timed", "the paper, 16 cores: 14,000 s"]
    assert texts(epochs)[1] == "2 workers: - (best 5.00)"
    assert (len(times.lines), len(epochs.lines)) == (2, 3)
    assert times.get_ylim()[1] > 10


# -- 16 cores


def test_bars_of_16_cores(tmp_path: Path) -> None:
    store(tmp_path, "c16-qm9-torch-1", [9.0])
    store(tmp_path, "c16-qm9-torch-16", [9.0, 4.5], epoch_seconds=100)
    store(tmp_path, "c16-qm9-workers8-128", [9.0, 5.0])
    store(tmp_path, "c16-qm9-replicas8-128", [9.0, 4.5], alone=False)
    store(tmp_path, "c16-qm9-replicas16-256", [9.0, 4.5], epoch_seconds=25)
    figure = sixteen(read(tmp_path))
    drawn(figure)
    (axes,) = figure.axes
    assert axes.get_title(loc="left") == "QM9 to 4.6: ours 4.00 x as fast as torch"
    wanted = ["not reached", "not timed", "50.0", "not run", "one epoch only", "not run", "not run", "not run", "200"]
    assert texts(axes) == wanted


# -- the grid


def fill(folder: Path, *, far: bool = True) -> Results:
    for frequency_ in GRID_FREQUENCIES:
        for keys in GRID_KEYS:
            end = 0.97 if far else 0.95
            values = [0.8] * (frequency_ + keys // 16) + [0.94, end]
            store(folder, f"c16-grid-{keys}-{frequency_}", values, train=1e5 + 1e3 * keys, epoch_seconds=1)
    return read(folder)


def test_the_grid_shows_every_cell_twice_and_lines_of_equal_time(tmp_path: Path) -> None:
    results = fill(tmp_path)
    figure = grid(results)
    drawn(figure)
    points, cells = figure.axes
    seconds = [text for text in texts(points) if text.endswith(" s")]
    assert len(seconds) >= 3
    assert sorted(map(int, filter(str.isdecimal, texts(points)))) == sorted(4 * GRID_KEYS)
    assert [text for text in texts(points) if text.startswith("muf")] == ["muf 1", "muf 2", "muf 4", "muf 8"]
    assert len(texts(cells)) == 16
    assert texts(cells)[0] == "3.0 s\n3 epochs"
    for line in points.lines:
        if line.get_color() == "#c3c9ce":  # sequences / throughput is the same at both ends
            (x0, x1), (y0, y1) = line.get_data()
            assert x0 / y0 == pytest.approx(x1 / y1)


def test_a_grid_without_a_cell_at_the_target(tmp_path: Path) -> None:
    results = fill(tmp_path, far=False)
    store(tmp_path, "c16-grid-8-1", [], diverged=True)
    (tmp_path / "c16-grid-16-1-s0.json").unlink()
    figure = grid(read(tmp_path))
    drawn(figure)
    points, cells = figure.axes
    assert texts(points) == ["no cell has reached the target"]
    assert texts(cells)[:3] == ["diverged", "-", "not reached\nbest 95.0 %"]
    assert len(results.of("grid")) == 16


# -- studies


def test_lines_of_update_sizes_are_named_at_their_ends(tmp_path: Path) -> None:
    for gradients in (50, 1600, 12_800):
        store(tmp_path, f"sentiment-frequency-{gradients}", [0.8, 0.81, 0.82], alone=gradients != 50)
    store(tmp_path, "sentiment-torch-1", [0.8, 0.82])
    figure = frequency(read(tmp_path))
    drawn(figure)
    curves, bars = figure.axes
    assert texts(curves) == ["50", "1,600", "12,800", "torch, batches of 25"]
    boxes = sorted((text.get_window_extent() for text in curves.texts), key=lambda box: box.y0)
    assert all(low.y1 <= high.y0 + 1 for low, high in pairwise(boxes))
    assert not bars.get_visible()  # one was not alone
    store(tmp_path, "sentiment-frequency-50", [0.8, 0.81])
    bars = frequency(read(tmp_path)).axes[1]
    assert texts(bars) == ["1,000"] * 3


def test_remedies_are_lines_over_the_number_in_flight(tmp_path: Path) -> None:
    for i, keys in enumerate((1, 4, 16)):
        for remedy in ("current-full", "stash-full"):
            for seed in (0, 1, 2):
                values = [0.5, 0.9 - 0.01 * i * (remedy == "current-full") + 0.001 * seed]
                store(tmp_path, f"list-reduction-staleness-{remedy}-{keys}", values, seed=seed, staleness=i)
    store(tmp_path, "list-reduction-staleness-stash-full-64", [], diverged=True)
    store(tmp_path, "babi15-staleness-current-full-1", [0.5])
    figure = staleness(read(tmp_path))
    drawn(figure)
    lists, babi = figure.axes
    assert texts(lists) == ["current-full", "stash-full"]
    assert texts(babi) == ["current-full"]
    assert [tick.get_text() for tick in lists.get_xticklabels()] == ["1\n0.0", "4\n1.0", "16\n2.0", "64\n-"]
    low, high = lists.get_ylim()
    assert high - low >= 2 - 1e-9
    assert [list(line.get_xdata()) for line in lists.lines if len(line.get_xdata()) == 3] == [[0, 1, 2]] * 2


# -- all of them


def test_pictures_are_those_that_there_are_results_for(tmp_path: Path) -> None:
    assert pictures(read(tmp_path)) == {}
    store(tmp_path, "mnist-torch-1")  # nothing of ours
    assert paint_all(read(tmp_path), tmp_path / "pictures") == []
    store(tmp_path, "mnist-waves-1")
    store(tmp_path, "c16-mnist-torch-1")
    assert paint_all(read(tmp_path), tmp_path / "pictures") == ["mnist", "time"]
    assert sorted(path.name for path in (tmp_path / "pictures").iterdir()) == ["mnist.png", "time.png"]


def test_files_that_are_older_than_some_fields_are_drawn(tmp_path: Path) -> None:
    store(tmp_path, "mnist-waves-1")
    path = tmp_path / "mnist-waves-1-s0.json"
    data = json.loads(path.read_text())
    del data["run"]["alone"], data["run"]["limit"]
    path.write_text(json.dumps(data))
    assert read(tmp_path).of("table")[0].alone
    data["run"]["cores"] = 1
    path.write_text(json.dumps(data))
    assert not read(tmp_path).of("table")[0].alone
    drawn(convergence(PAPER["mnist"], read(tmp_path)))
