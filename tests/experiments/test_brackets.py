"""Sentences with their trees, as people write them."""

from __future__ import annotations

import pytest

from ampnet import DataError
from ampnet.experiments.brackets import parse, parted


@pytest.mark.parametrize(
    "text",
    ["(3 (2 It) (4 (2 's) (4 great)))", "((It) (('s) (great)))", "(It ('s great))", " ( It\n\t('s  ((great)) ) ) "],
)
def test_the_same_tree_in_every_form(text: str) -> None:
    """With the numbers that the same tree has in the data."""
    found = parse(text)
    assert found.parents == (4, 3, 3, 4, -1)
    assert found.words == ("It", "'s", "great")
    assert [found.phrase(node) for node in range(5)] == ["It", "'s", "great", "'s great", "It 's great"]
    assert found.depths == (1, 2, 2, 1, 0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("(2 2)", ["2"]),
        ("(2)", ["2"]),
        ("(2 3 4)", ["3", "4"]),
        ("(7 up)", ["7", "up"]),
        ("(4 (0 1) (2 2))", ["1", "2"]),
    ],
)
def test_a_digit_is_a_label_where_something_follows(text: str, words: list[str]) -> None:
    assert list(parse(text).words) == words


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "there is no tree in it"),
        ("It is", "column 1: 'It is' has no brackets"),
        ("()", "column 1: a node holds nothing; it must be one word or two parts"),
        ("(It (is so great))", "column 5: a node holds 3 parts"),
        ("(It (is great)", "column 15: the tree ends too early: the bracket of column 1 is open"),
        ("(It is))", "column 8: ')' after the end of the tree"),
        ("(It is) (so)", "column 9: '(' after the end of the tree; give one tree at a time"),
        ("well (It is)", "column 1: 'well' before the first bracket"),
        ("((It)\n (is so great))", "line 2, column 2: a node holds 3 parts"),
        ("(It\n (is great)\n", "line 2, column 12: the tree ends too early: the bracket of line 1, column 1 is open"),
        (") (", "column 1: a bracket is closed that was never opened"),
    ],
)
def test_a_fault_has_its_column(text: str, said: str) -> None:
    with pytest.raises(DataError) as found:
        parse(text)
    assert str(found.value).startswith(said)


def test_trees_of_a_text() -> None:
    text = "(It is)\n\n(3 (2 It)\n   (4 great))\nwords\n(It"
    assert parted(text) == ["(It is)", "\n(3 (2 It)\n   (4 great))", "words", "(It"]
    assert parted(" \n") == []
