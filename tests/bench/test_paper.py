"""The plan of `bench.paper`, its tables and its page."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from bench.paper import baseline, page, plan
from bench.paper.figures import BOUNDS, PAPER, Epochs, Faster, Slowdown, Throughput
from bench.paper.plan import GRID_FREQUENCIES, GRID_KEYS, QUICK, QUICK_EPOCHS, REMEDIES, RUNS, remedy_name
from bench.paper.results import read
from bench.paper.runs import Run, chosen
from bench.paper.study import best_table, frequency_table, grid_table, sequences, staleness_table
from bench.paper.table import throughput_table, time_table, workload_table

from ampnet.cli import make_parser
from tests.bench.papers import BY_NAME, LARGE, MACHINE, cells, store

# -- the plan


def test_names_are_unique_and_fit_for_files() -> None:
    assert len(BY_NAME) == len(RUNS)
    assert all(re.fullmatch(r"[a-z0-9-]+", name) for name in BY_NAME)
    assert all(run.name.startswith("c16-") == (run.cores == 16) for run in RUNS)
    assert [run.name for run in chosen(["mnist-torch-*", "qm9-waves-4"], RUNS)] == [
        "mnist-torch-1",
        "mnist-torch-2",
        "qm9-waves-4",
    ]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_every_command_is_understood(run: Run, tmp_path: Path) -> None:
    module, *argv = run.command(1)
    argv += ["--json", str(tmp_path / "report.json"), "--quiet"]
    assert module == ("bench.paper.baseline" if run.way == "torch" else "ampnet")
    parser = baseline.make_parser() if run.way == "torch" else make_parser()
    args, unknown = parser.parse_known_args(argv)
    assert not unknown
    assert (args.seed, args.epochs, args.target) == (1, run.epochs, run.target)
    assert run.width <= run.cores
    assert run.workers % run.replicas == 0 or run.way == "replicas"


def test_every_bound_has_runs_that_go_beyond_it() -> None:
    for bound in BOUNDS:
        same = [run for run in RUNS if run.workload == bound.workload and run.study == "table"]
        if isinstance(bound, Epochs):
            way = "workers" if bound.replicas == 1 else "replicas"
            wanted = (way, bound.max_active_keys, bound.replicas)
            there = [run for run in same if (run.way, run.max_active_keys, run.replicas) == wanted]
            assert there
            assert all(run.epochs >= bound.at_most and len(run.seeds) >= bound.seeds for run in there)
        if isinstance(bound, Slowdown) or (isinstance(bound, Epochs) and bound.replicas == 1):
            rows = [row for row in PAPER[bound.workload].rows if row.replicas == 1]
            assert bound.max_active_keys == max(row.max_active_keys for row in rows)
        if isinstance(bound, Throughput):
            assert bound.above == max(row.rate for row in PAPER[bound.workload].rows)
        if isinstance(bound, Faster):
            large = [run for run in same if run.cores == 16]
            assert {run.way for run in large} == {"workers", "replicas", "both", "torch"}
            assert {run.workers for run in large if run.way == "torch"} == {1, 2, 4, 8, 16}
            assert all(len(run.seeds) >= bound.seeds and run.timed for run in large)


def test_table_1_has_the_papers_numbers_in_flight_and_enough_seeds() -> None:
    for name, paper in PAPER.items():
        numbers = {row.max_active_keys for row in paper.rows if row.replicas == 1}
        for way in ("sync", "workers"):
            runs = [r for r in RUNS if (r.workload, r.way, r.study, r.cores) == (name, way, "table", 2)]
            assert {run.max_active_keys for run in runs} == numbers
            assert all(len(run.seeds) >= (1 if name == "qm9" else 3) and run.timed for run in runs)


def test_the_grid_is_whole_and_counts_instances() -> None:
    cells = [run for run in RUNS if run.study == "grid"]
    found = {(run.max_active_keys, int(run.option("--min-update-frequency") or 0)) for run in cells}
    assert found == {(keys, frequency) for keys in GRID_KEYS for frequency in GRID_FREQUENCIES}
    assert {(run.replicas, run.target, run.cores, run.timed) for run in cells} == {(8, 0.96, 16, True)}
    assert "--count" not in {word for run in cells for word in run.args}  # the workload counts instances


def test_remedies_have_names_of_their_own() -> None:
    assert [remedy_name(remedy) for remedy in REMEDIES][:2] == ["current-full", "stash-full"]
    assert len({remedy_name(remedy) for remedy in REMEDIES}) == len(REMEDIES)
    assert remedy_name(("--weights", "stash", "--flag", "--rate-of", "cell*=0.1")) == "stash-flag-cell-0-1"


def test_the_quick_part_is_short_and_of_the_same_runs() -> None:
    assert {run.name for run in QUICK} == set(QUICK_EPOCHS)
    for run in QUICK:
        assert run.seeds == (0,)
        assert run.epochs <= BY_NAME[run.name].epochs
        assert (run.workload, run.cores) != ("qm9", 16)
    assert {run.study for run in QUICK} == {"table", "frequency", "staleness"}


# -- Table 1


def test_a_line_has_medians_over_the_seeds(tmp_path: Path) -> None:
    for seed, (epochs, train) in enumerate(((3, 900.0), (5, 1000.0), (4, 5000.0))):
        store(tmp_path, "mnist-workers2-4", [0.9] * (epochs - 1) + [0.98], seed=seed, train=train)
    table = workload_table(PAPER["mnist"], read(tmp_path))
    line = ["2 workers", "4", "3", "4", "40.0", "1,000", "2,000", "0.0", "4", "44.0", "5,750"]
    assert cells(table, "2 workers", "4") == line
    assert cells(table, "TensorFlow, in the paper")[-3:] == ["3", "34.5", "5,880"]


def test_runs_that_were_not_made_are_dashes(tmp_path: Path) -> None:
    store(tmp_path, "mnist-waves-1")
    table = workload_table(PAPER["mnist"], read(tmp_path))
    assert cells(table, "synchronous", "4")[2:] == ["-"] * 9
    assert cells(table, "torch, 2 threads")[1:] == ["-"] * 10
    assert cells(table, "synchronous", "1")[2:5] == ["1", "2", "20.0"]


def test_a_target_that_was_not_reached_is_a_dash_and_the_best_value(tmp_path: Path) -> None:
    for seed, last in enumerate((0.98, 0.95, 0.961)):
        store(tmp_path, "mnist-waves-1", [0.9, last], seed=seed)
        store(tmp_path, "mnist-workers2-1", [0.9, 0.98 if seed else 0.95], seed=seed)
    store(tmp_path, "mnist-workers2-4", [], diverged=True)
    store(tmp_path, "qm9-waves-4", [9.0, 5.123])
    results = read(tmp_path)
    table = workload_table(PAPER["mnist"], results)
    assert cells(table, "synchronous", "1")[3:5] == ["- (1 of 3 seeds; best 98.0 %)", "-"]
    assert cells(table, "2 workers", "1")[3:5] == ["2 (2 of 3 seeds)", "20.0"]
    assert cells(table, "2 workers", "4")[3:5] == ["- (1 diverged)", "-"]
    assert cells(workload_table(PAPER["qm9"], results), "synchronous", "4")[3] == "- (best 5.12)"


def test_seconds_and_rates_are_of_runs_that_were_alone(tmp_path: Path) -> None:
    store(tmp_path, "mnist-waves-1", alone=False)
    table = workload_table(PAPER["mnist"], read(tmp_path))
    assert cells(table, "synchronous", "1")[2:8] == ["1", "2", "-", "-", "-", "0.0"]


def test_lines_say_which_machine_they_are_from_if_there_are_several(tmp_path: Path) -> None:
    store(tmp_path, "mnist-waves-1")
    store(tmp_path, "mnist-waves-4", machine=MACHINE | {"load": "7.00"})
    store(tmp_path, "c16-mnist-torch-1")
    assert "machine" not in workload_table(PAPER["mnist"], read(tmp_path))
    store(tmp_path, "mnist-waves-4", seed=1, machine=LARGE)
    results = read(tmp_path)
    table = workload_table(PAPER["mnist"], results)
    assert [cells(table, "synchronous", number)[8] for number in ("1", "4")] == ["A", "A, B"]
    assert cells(table, "2 replicas")[8] == "-"
    text = page.text(results)
    assert "- A: Abacus, 2 cores; Python 3.11.7, torch 2.13" in text
    assert "- B: Difference Engine" in text


# -- 16 cores, throughput, studies


def test_time_on_16_cores_is_against_the_fastest_torch(tmp_path: Path) -> None:
    store(tmp_path, "c16-mnist-torch-1", epoch_seconds=8)
    store(tmp_path, "c16-mnist-torch-4", epoch_seconds=6)
    store(tmp_path, "c16-mnist-replicas4-8", epoch_seconds=2)
    store(tmp_path, "c16-qm9-torch-1", [9.0])
    table = time_table(read(tmp_path))
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    found = {line[1]: line for line in reversed(lines)}
    assert found["4 replicas"][5] == "4.0"
    assert found["4 replicas"][-1] == "3.00 x"
    assert found["torch, 4 threads"][-1] == "-"
    assert lines[0][0] == "MNIST"
    assert [line for line in lines if line[0] == "QM9"]
    qm9 = lines[next(i for i, line in enumerate(lines) if line[0] == "QM9") :]
    speed = next(line for line in qm9 if line[1] == "torch, 1 thread")
    assert speed[4:7] == ["-", "-", "1,000"]  # one epoch, no target


def test_throughput_takes_two_cores_and_else_16(tmp_path: Path) -> None:
    store(tmp_path, "list-reduction-replicas2-4", train=2000)
    store(tmp_path, "c16-list-reduction-replicas2-4", train=9000)
    store(tmp_path, "c16-list-reduction-replicas4-8", train=9000)
    store(tmp_path, "list-reduction-torch-1", train=700)
    store(tmp_path, "list-reduction-torch-2", train=800)
    table = throughput_table(read(tmp_path))
    assert cells(table, "List reduction, 2 replicas")[3:5] == ["2,000 / 4,000", "-"]
    last = cells(table, "List reduction, 4 replicas")
    assert last[3] == "9,000 / 18,000 (16 cores)"
    assert last[5] == "800 / 1,600 (2 threads)"


def test_the_grid_has_a_text_in_every_cell(tmp_path: Path) -> None:
    store(tmp_path, "c16-grid-8-1", [0.9, 0.94, 0.97], train=100_000, epoch_seconds=1, staleness=2)
    store(tmp_path, "c16-grid-16-1", [0.9, 0.95])
    store(tmp_path, "c16-grid-32-1", [0.9], diverged=True)
    results = read(tmp_path)
    assert cells(grid_table(results), "1 (100 sequences)")[1:] == [
        "3.0 s, 3 epochs; 100,000/s, staleness 2.0",
        "- (best 95.0 %); 1,000/s, staleness 0.0",
        "- (1 diverged; best 90.0 %); 1,000/s, staleness 0.0",
        "-",
    ]
    assert cells(grid_table(results), "8 (800 sequences)")[1:] == ["-"] * 4
    found = {one.run.name: sequences(one) for one in results.of("grid")}
    assert found["c16-grid-8-1"] == pytest.approx(100_000 * (2 + 2 / 3))  # 96 % is two thirds of the way to 97 %
    assert found["c16-grid-16-1"] is None
    store(tmp_path, "c16-grid-8-1", [0.97])
    assert sequences(read(tmp_path).of("grid")[0]) == 100_000


def test_studies_have_a_cell_for_every_run(tmp_path: Path) -> None:
    store(tmp_path, "sentiment-frequency-50", [0.5, 0.8], staleness=1.5)
    store(tmp_path, "sentiment-torch-1", [0.7, 0.82])
    for seed, last in enumerate((0.9, 0.96, 0.94)):
        store(tmp_path, "mnist-staleness-current-full-4", [0.8, 0.85, last], seed=seed, staleness=0.25, alone=False)
        store(tmp_path, "mnist-staleness-stash-full-8", [0.8], seed=seed, diverged=seed == 1)
    store(tmp_path, "c16-qm9-best", [4.5, 3.75, 3.9])
    results = read(tmp_path)
    table = frequency_table(results)
    assert cells(table, "50")[1:] == ["50.0 %", "80.0 %", *["-"] * 6, "1,000", "1.5"]
    assert cells(table, "12,800")[1:] == ["-"] * 10
    assert cells(table, "torch, batches of 25")[1:4] == ["70.0 %", "82.0 %", "-"]
    table = staleness_table("mnist", results)
    assert cells(table, "`--weights current --stale-rate full`")[1:] == ["94.0 % (0.2)", "-"]
    assert cells(table, "`--weights stash --stale-rate full`")[2] == "1 of 3 seeds diverged (0.0)"
    assert cells(best_table(results), "QM9")[1:6] == ["3.80", "2", "20.0", "3.750", "1,000"]


# -- the page


@pytest.fixture
def full(tmp_path: Path) -> Path:
    """Returns a folder with a file for every run."""
    for i, run in enumerate(RUNS):
        far = [9.0, 6.0, 4.5] if run.workload == "qm9" else [0.5, 0.75, 0.9, 1.0]
        store(tmp_path / "results", run.name, far, train=1000.0 + i, staleness=i % 7, commit="abc1234")
    return tmp_path / "results"


def test_the_page_has_all_tables_and_its_pictures_exist(full: Path, tmp_path: Path) -> None:
    results = page.write(full, tmp_path / "docs" / "results.md", tmp_path / "docs" / "pictures")
    text = (tmp_path / "docs" / "results.md").read_text()
    links = re.findall(r"!\[.*?\]\((.*?)\)", text)
    assert links == [f"pictures/{name}.png" for name in (*PAPER, "time", "grid", "frequency", "staleness")]
    assert all((tmp_path / "docs" / link).stat().st_size > 10_000 for link in links)
    assert not list(tmp_path.rglob("*.part"))
    heads = re.findall(r"^## (.*)$", text, re.M)
    assert heads == [
        "Bounds",
        *(paper.title for paper in PAPER.values()),
        "Time to the target on 16 cores",
        "The asynchrony grid",
        "Gradients in an update",
        "Staleness and remedies",
        "QM9, further down",
        "Throughput",
        "How it was measured",
    ]
    assert "Not run" not in text
    assert "Not results" not in text
    assert "Fewer seeds than planned" in text
    assert f"All {len(RUNS)} files are of commit `abc1234`." in text
    assert "`wordvec300`" in text
    assert "| 3,200 | 50.0 % | 75.0 % | 90.0 % | 100.0 % |" in text
    assert all(f"`{run.name}`" in page.text(replace(results, measured=results.measured[:1])) for run in RUNS[1:])


def test_several_commits_are_listed(tmp_path: Path) -> None:
    for seed, commit in enumerate(("abc1234", "abc1234", "def5678+0a0a0a0a")):
        store(tmp_path, "mnist-waves-1", seed=seed, commit=commit)
    assert "The files are of 2 commits: `abc1234` (2), `def5678+0a0a0a0a` (1)." in page.text(read(tmp_path))


def test_where_settings_were_chosen_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store(tmp_path, "c16-qm9-best", [4.5, 3.7])
    monkeypatch.setattr(page, "CHOSEN_ON", plan.REPORTED_ON)
    assert "chosen on the same one" in page.text(read(tmp_path))
    monkeypatch.setattr(page, "CHOSEN_ON", plan.REPORTED_ON + 1)
    assert f"chosen on another one, `--split {plan.REPORTED_ON + 1}`" in page.text(read(tmp_path))


def test_without_results_the_page_says_so(tmp_path: Path) -> None:
    assert "Nothing has been run yet." in page.text(read(tmp_path))


@pytest.mark.skipif(not list(page.RESULTS.glob("*.json")), reason="there are no result files")
def test_the_committed_page_is_that_of_the_committed_files() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert text == page.text(read(page.RESULTS)), "'python -m bench.paper write' makes it again"
    assert all((page.PAGE.parent / link).exists() for link in re.findall(r"!\[.*?\]\((.*?)\)", text))
