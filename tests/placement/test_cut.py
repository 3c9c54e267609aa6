"""Cut: the busiest worker has as little as possible to do; units stay together; memory suffices."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ampnet import GraphError
from ampnet.placement import Costs, Flow, Made
from ampnet.placement import cut as module
from ampnet.placement.costs import BYTES, COPIED
from ampnet.placement.cut import cut
from ampnet.placement.memory import PROCESS
from tests.placement.synthetic import chain, together


def test_a_chain_is_cut_in_the_middle() -> None:
    hosts = cut(chain(1.0, 1.0, 1.0, 1.0, size=1e6), 2, {})
    assert hosts == {"a": 0, "b": 0, "c": 1, "d": 1}  # one crossing, and workers in the order of nodes


def test_one_heavy_node_has_a_worker_to_itself() -> None:
    hosts = cut(chain(0.1, 0.1, 1.0, 0.1), 2, {})
    assert [n for n in hosts if hosts[n] == hosts["c"]] == ["c"]


def test_a_loop_that_would_cross_in_every_round_stays_on_one_worker() -> None:
    """Two nodes in a loop: a ──> b ──> a ...; 100 rounds of two crossings each, forward and back."""
    costs = chain(1e-3, 1e-3, 1e-3)
    costs.made["a", 0] = Made(0.0, {"b": Flow(100.0)})
    costs.made["b", 0] = Made(0.0, {"a": Flow(100.0), "c": Flow(1.0)})
    hosts = cut(costs, 2, {})
    assert together(hosts, "ab")
    assert hosts["c"] != hosts["a"]
    costs.seconds = dict.fromkeys("abc", 1.0)  # where there is enough to do in each round, it is worth it
    assert not together(cut(costs, 3, {}), "ab")


def test_rows_cross_once_to_a_worker_whoever_reads_them() -> None:
    flows = {"b": Flow(1.0, 4 * BYTES), "c": Flow(1.0, 4 * BYTES)}
    costs = Costs(dict.fromkeys("abc", 1.0), {("a", 0): Made(4 * BYTES, flows, still=True)})
    apart = costs.loads({"a": 0, "b": 1, "c": 2}, 3)
    beside = costs.loads({"a": 0, "b": 1, "c": 1}, 3)
    assert apart[0] == pytest.approx(9.0, rel=1e-3)
    assert beside[0] == pytest.approx(5.0, rel=1e-3)
    assert beside[1] == pytest.approx(6.0, rel=1e-3)


def test_gradients_cross_back_unless_nobody_wants_them() -> None:
    still, moved = (
        Costs(dict.fromkeys("ab", 0.0), {("a", 0): Made(BYTES, {"b": Flow(0, BYTES)}, s)}) for s in (True, False)
    )
    hosts = {"a": 0, "b": 1}
    assert still.loads(hosts, 2) == pytest.approx([1.0, 1.0])
    assert moved.loads(hosts, 2) == pytest.approx([2.0, 2.0])


def test_a_view_is_made_only_where_a_reader_is_elsewhere() -> None:
    flows = {"b": Flow(0.0, 0.0), "c": Flow(0.0, 0.0)}
    costs = Costs(dict.fromkeys("abc", 0.0), {("a", 0): Made(COPIED, flows, still=True, view=True)})
    assert costs.loads({"a": 0, "b": 0, "c": 0}, 2) == [0.0, 0.0]
    assert costs.loads({"a": 0, "b": 0, "c": 1}, 2) == pytest.approx([2.0, 0.0])


def test_units_stay_together() -> None:
    costs = chain(1.0, 1.0, 1.0, 1.0)
    costs.units = [frozenset("ad")]
    hosts = cut(costs, 2, {})
    assert together(hosts, "ad")
    assert together(hosts, "bc")
    assert cut(costs, 2, {"d": 1, "b": 0})["a"] == 1  # what is not fixed in a unit goes with what is
    assert cut(costs, 2, {"a": 0, "d": 1})["d"] == 1


@pytest.mark.parametrize("workers", [2, 3])
def test_as_good_as_the_best_of_all(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    costs = chain(3e-3, 1e-3, 4e-3, 1e-3, 5e-3, 2e-3, size=1e5)

    def worst(hosts: dict[str, int]) -> float:
        return max(costs.loads(hosts, workers))

    least = min(worst(dict(zip(costs.seconds, one, strict=True))) for one in product(range(workers), repeat=6))
    assert worst(cut(costs, workers, {})) < 1.05 * least
    monkeypatch.setattr(module, "_WAYS", 0)  # by search
    assert worst(cut(costs, workers, {})) < 1.15 * least


@settings(max_examples=60)
@given(st.data())
def test_every_node_is_placed_and_what_is_fixed_is_kept(data: st.DataObject) -> None:
    count, workers = data.draw(st.integers(1, 14)), data.draw(st.integers(1, 5))
    costs = chain(*data.draw(st.lists(st.floats(0, 1), min_size=count, max_size=count)), size=1e4)
    names = list(costs.seconds)
    costs.units = [frozenset(data.draw(st.sets(st.sampled_from(names), min_size=1)))]
    fixed = data.draw(st.dictionaries(st.sampled_from(names), st.integers(0, workers - 1)))
    hosts = cut(costs, workers, fixed)
    assert set(hosts) == set(names)
    assert all(0 <= worker < workers for worker in hosts.values())
    assert {name: hosts[name] for name in fixed} == fixed
    if not fixed:
        assert together(hosts, costs.units[0])


# Memory


def test_parameters_are_shared_out_so_that_they_fit() -> None:
    costs = chain(1.0, 0.1, 0.1, 0.1)
    costs.memory = dict.fromkeys("abcd", 10**9)
    assert sorted(cut(costs, 2, {}, PROCESS + 2 * 10**9).values()) == [0, 0, 1, 1]
    assert sorted(cut(costs, 2, {}).values()) == [0, 1, 1, 1]


def test_many_nodes_that_fit_only_just() -> None:
    costs = chain(*[1.0 / (i + 1) for i in range(24)])
    costs.memory = {name: 10**8 * (1 + i % 5) for i, name in enumerate(costs.seconds)}
    limit = PROCESS + int(1.05 * sum(costs.memory.values()) / 6)
    hosts = cut(costs, 6, {}, limit)
    held = [sum(costs.memory[name] for name in hosts if hosts[name] == worker) for worker in range(6)]
    assert max(held) <= limit - PROCESS


def test_a_unit_is_parted_where_it_would_not_fit_otherwise() -> None:
    costs = chain(1.0, 1.0, 1.0)
    costs.memory = dict.fromkeys("abc", 10**9)
    costs.units = [frozenset("abc")]
    assert together(cut(costs, 3, {}, PROCESS + 3 * 10**9), "abc")
    assert len(set(cut(costs, 3, {}, PROCESS + 10**9).values())) == 3
    with pytest.raises(GraphError, match=r"need 3.00 GB.* do not fit on 2 workers.*node 'a' needs 1.00 GB"):
        cut(costs, 2, {}, PROCESS + 10**9)


def test_what_does_not_fit_names_the_largest_node_and_the_remedy() -> None:
    costs = chain(1.0, 1.0, 1.0)
    costs.memory = {"a": 12 * 10**8, "b": 2 * 10**9, "c": 12 * 10**8}
    with pytest.raises(GraphError, match=r"node 'b' needs 2.00 GB .* 1.50 GB are left .*or tiles if it is a Linear"):
        cut(costs, 3, {}, PROCESS + 15 * 10**8)
    with pytest.raises(GraphError, match=r"need 4.40 GB.* do not fit on 2 workers.*node 'b'.*Remedy: more workers"):
        cut(costs, 2, {}, PROCESS + 21 * 10**8)
    assert len(set(cut(costs, 3, {}, PROCESS + 21 * 10**8).values())) == 3


def test_more_cuts_than_a_float_can_count() -> None:
    """Once ``--workers 99`` ended in an OverflowError: 99 ** 199 cuts."""
    costs = chain(*[1e-3] * 200)
    assert set(cut(costs, 99, {})) == set(costs.seconds)
