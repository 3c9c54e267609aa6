"""Scores: what is unpacked is what was packed, whatever the numbers; and equal rounds are stored once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampnet.plan.records import Records
from ampnet.plan.score import WIDTHS, Links, Score, Tables, packed
from ampnet.state import Ints
from tests.wave.both import NAMES, model, player_of

WIDE = st.sampled_from([3, 255, 256, 65_535, 65_536, 2**31 - 1, 2**31, 2**40])
"""Bounds of numbers, at the borders of dtypes."""
Pairs = list[tuple[int, int]]


@st.composite
def tables(draw: st.DrawFn) -> tuple[Tables, list[list[Pairs]]]:
    """Tables of a few instances, and the links of each record by instance."""
    count = draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    made: dict[str, tuple[Ints, Ints]] = {}
    for name in ("blocks", "runs", "heard"):
        mine = rng.integers(0, 4, count)
        table = rng.integers(0, draw(WIDE), (int(mine.sum()), WIDTHS[name]))
        table[:, 1] = rng.integers(0, 9, len(table))  # rounds
        made[name] = table, mine
    told, values = [], []
    for _ in range(count):
        some = [(rng.integers(9), rng.integers(9), rng.integers(1, 4), rng.integers(1, 4)) for _ in range(2)]
        told += some
        values.append(rng.integers(-2, draw(WIDE), sum(int(w * m) for _, _, w, m in some)))
    made["told"] = np.array(told, dtype=np.int64), np.full(count, 2)
    made["values"] = np.concatenate(values)[:, None], np.array([len(one) for one in values])
    most = draw(WIDE)
    keys, owners, links = [], [], []
    for instance in range(count):
        mine_links: list[Pairs] = []
        for slot in range(int(rng.integers(0, 3))):
            pattern = rng.integers(0, most, (int(rng.integers(1, 5)), 2))
            for round_ in range(int(rng.integers(1, 4))):
                if rng.random() < 0.3:
                    pattern = rng.integers(0, most, (int(rng.integers(1, 5)), 2))
                keys.append((slot, round_, int(rng.integers(2))))
                owners.append(instance)
                mine_links.append([tuple(pair) for pair in (pattern + rng.integers(0, most, 2)).tolist()])
        links.append(mine_links)
    flat = np.array([pair for mine in links for record in mine for pair in record], dtype=np.int64).reshape(-1, 2)
    counts = np.array([len(record) for mine in links for record in mine], dtype=np.int64)
    found = Links(
        np.array(keys, dtype=np.int64).reshape(-1, 3), counts, np.array(owners, dtype=np.int64), flat[:, 0], flat[:, 1]
    )
    single = rng.random(count) < 0.5
    return Tables(rng.integers(1, most, count), single, found, made), links


def together(scores: list[Score]) -> tuple[dict[str, list[list[int]]], list[Pairs]]:
    """All tables but links, and the links of each record."""
    records = Records(scores)
    read, made = records.links()
    counts = records.table("links")[3]
    cuts = np.cumsum(counts)[:-1]
    pairs = [list(map(tuple, one.tolist())) for one in np.split(np.stack((read, made), 1), cuts)] if len(counts) else []
    return {name: records.table(name).T.tolist() for name in WIDTHS if name != "links"}, pairs


@given(tables())
def test_unpacked_is_what_was_packed(given: tuple[Tables, list[list[Pairs]]]) -> None:
    """All instances in one wave, and each alone."""
    made, links = given
    count = len(made.rows)
    scores = packed(made, 0, [b""] * count)
    found, pairs = together(scores)
    assert found == {name: table.tolist() for name, (table, _) in made.tables.items()}
    assert pairs == [record for mine in links for record in mine]
    records = Records(scores)
    assert records.rows.tolist() == made.rows.tolist()
    assert records.single == made.single.all()
    for i, score in enumerate(scores):
        alone, pairs = together([score])
        for name, (table, mine) in made.tables.items():
            stop = int(np.cumsum(mine)[i])
            assert alone[name] == table[stop - mine[i] : stop].tolist()
        assert pairs == links[i]


def test_rounds_with_equal_links_are_stored_once() -> None:
    """Read and made may be shifted from one round to the next, each by another number."""
    links = [[(10 * r + a, 7 * r + b) for a, b in ((3, 1), (1, 1), (0, 2))] for r in range(5)]
    flat = np.array(links).reshape(-1, 2)
    keys = np.array([(0, r, 0) for r in range(5)])
    found = Links(keys, np.full(5, 3), np.zeros(5, dtype=np.int64), flat[:, 0], flat[:, 1])
    none = np.zeros(1, dtype=np.int64)
    empty = {n: (np.zeros((0, w), dtype=np.int64), none) for n, w in WIDTHS.items() if n != "links"}
    (score,) = packed(Tables(np.array([99]), np.array([True]), found, empty), 0, [b""])
    assert len(score.pairs) == 2 * 3
    assert score.pairs.dtype == score.numbers.dtype == np.uint8
    assert together([score])[1] == links
    assert Records([score]).rounds == 5


@pytest.mark.parametrize("name", NAMES)
def test_a_score_does_not_depend_on_what_it_was_rehearsed_with(name: str) -> None:
    """Alone, or with all others."""
    from ampnet import Inline

    graph, instances = model(name)
    found = []
    for batch in (1, len(instances)):
        with Inline(graph, max_active_keys=1) as runtime:
            planner = player_of(runtime).planner
            runtime.rehearse(instances)  # so that each slot is read in the same way by all
            planner._scores.clear()
            planner._bytes = 0
            for start in range(0, len(instances), batch):
                runtime.rehearse(instances[start : start + batch])
            found.append({d: (s.numbers.tolist(), s.pairs.tolist()) for d, s in planner._scores.items()})
    assert found[0] == found[1]
