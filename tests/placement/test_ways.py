"""Ways: copies and tiles where one node is the bottleneck, and the best way by what is expected of it."""

from __future__ import annotations

import pytest

from ampnet import Graph, tile
from ampnet.lang import Compiled
from ampnet.models import list_reduction
from ampnet.placement import Costs, Flow, Made, place
from ampnet.placement.costs import BYTES
from ampnet.placement.memory import PROCESS
from ampnet.placement.units import around
from ampnet.placement.ways import Ways, best, copied_costs, numbers, tiled_costs
from ampnet.replicas.replicate import replicate


def graph() -> Compiled:
    return list_reduction.build(64)


def costs(cell: float = 0.09, size: float = 1e4) -> Costs:
    """As of list reduction: a loop of cat and cell."""
    return Costs(
        {"embedding": 5e-3, "cat": 0.0, "cell": cell, "classify": 5e-3, "loss": 1e-3},
        {
            ("embedding", 0): Made(size, {"cat": Flow(5, size)}),
            ("cat", 0): Made(2 * size, {"cell": Flow(5, 2 * size)}, view=True),
            ("cell", 0): Made(size, {"cat": Flow(4, size), "classify": Flow(1, size)}),
            ("classify", 0): Made(size, {"loss": Flow(1, size)}),
        },
        {"embedding": 3, "cat": 0, "cell": 11, "classify": 3, "loss": 2},
        instances=8.0,
        units=[frozenset({"cat", "cell"})],
        memory={"embedding": 100, "cell": 1000, "classify": 10},
    )


def test_a_node_that_has_most_of_the_work_is_copied() -> None:
    ways = Ways(graph(), costs(size=5e-4 * BYTES), cores=4)  # to tiles, each row would go as a whole
    plain, found = ways.of_workers(2), best([ways.one(), *ways.splits()])
    assert plain.speedup < 1.2
    assert found is not None
    assert found.workers == 4
    assert found.speedup > 2 * plain.speedup
    assert "cell" in found.copies
    assert found.options() == f"--workers 4 --replicate cell={found.copies['cell']}"


def test_what_does_not_pay_is_left_out() -> None:
    ways = Ways(graph(), costs(cell=1e-3, size=1e8), cores=4)
    found = best([ways.one(), *ways.splits()])
    assert found is not None
    assert (found.workers, found.options()) == (1, "--workers 1")


def test_ways_by_what_is_expected() -> None:
    ways = Ways(graph(), costs(), cores=4)
    replicas = [ways.of_workers(n, n).speedup for n in (2, 4)]
    assert ways.of_workers(2).speedup < ways.given(2, {("cat", "cell"): 2}, {}).speedup < replicas[0] < replicas[1]
    assert best([*ways.splits(), *ways.whole()]).options() == "--replicas 4"  # type: ignore[union-attr]
    assert {way.options() for way in ways.whole(parted=True)} == {
        "--replicas 2",
        "--replicas 2 --workers 4",
        "--replicas 4",
    }
    assert Ways(graph(), costs(), cores=1).one().speedup == 1


def test_tiles_where_rows_are_few_and_no_loop_is_in_the_way() -> None:
    wide = costs()
    wide.made["cell", 0] = Made(1e4, {"classify": Flow(1, 1e4)})
    wide.made["embedding", 0] = Made(1e4, {"cell": Flow(1, 1e4)})
    wide.units = []
    found = best(Ways(graph(), wide, cores=2).splits())
    assert found is not None
    assert found.options() == "--workers 2 --tile cell=2"


def test_memory_that_one_worker_does_not_have() -> None:
    ways = Ways(graph(), costs(), cores=4, limit=PROCESS + 1010)
    assert list(ways.whole()) == []  # a copy of the whole model does not fit
    assert {way.options() for way in ways.whole(parted=True)} == {"--replicas 2 --workers 4"}
    assert ways.of_workers(2).workers == 2


@pytest.mark.parametrize("count", [2, 3])
def test_copied_costs_have_the_names_of_a_copied_graph(count: int) -> None:
    real, before = graph(), costs()
    after = copied_costs(before, ["embedding", "cat", "cell"], count)
    replicate(real, around(real, "cell"), count)
    assert {name for name, node in real.nodes.items() if node.role != "route"} == set(after.seconds)
    total = sum(after.seconds[f"cell#{i + 1}"] for i in range(count))
    assert total == pytest.approx(before.seconds["cell"])  # a wave goes to one of them
    assert set(after.made["cell#1", 0].readers) == {"cat#1", "classify"}  # the loop stays with its copy
    assert set(after.made["embedding#1", 0].readers) == {"cat#1"}
    assert after.total == pytest.approx(before.total)
    hosts = place(real, 2, None, after)
    assert all(hosts[f"cat#{i + 1}"] == hosts[f"cell#{i + 1}"] for i in range(count))


def test_tiled_costs_have_the_names_of_a_tiled_graph() -> None:
    real: Graph = graph()
    after = tiled_costs(costs(), "cell", 2)
    tile(real, "cell", 2)
    assert {name for name, node in real.nodes.items() if node.role != "route"} == set(after.seconds)
    assert set(after.made["cat", 0].readers) == {"cell~1", "cell~2"}  # each reads all of it
    assert after.made["cell~1", 0].bytes == costs().made["cell", 0].bytes / 2
    assert set(after.made["cell_together", 0].readers) == {"cat", "classify"}
    assert after.memory["cell~1"] == 500


def test_a_wave_of_one_instance_meets_one_copy() -> None:
    one = costs()
    one.instances = 1.0
    after = copied_costs(one, ["cat", "cell"], 2)
    assert after.operations["cell#1"] == one.operations["cell"] / 2
    assert sum(after.seconds[f"cell#{i}"] for i in (1, 2)) == pytest.approx(one.seconds["cell"])


def test_numbers_of_workers() -> None:
    assert [numbers(cores) for cores in (1, 2, 6, 16)] == [[], [2], [2, 4, 6], [2, 4, 8, 16]]


def test_expectations_are_ordered_like_the_work() -> None:
    speeds = [best(Ways(graph(), costs(cell), cores=8).splits()).speedup for cell in (0.01, 0.05, 0.5)]  # type: ignore[union-attr]
    assert speeds == sorted(speeds)
