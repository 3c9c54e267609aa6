"""What a notebook or a Python prompt shows of graphs, runtimes and results."""

from __future__ import annotations

from xml.etree import ElementTree

import torch

from ampnet import Graph, Inline, Replicate, StreamStats, compile
from ampnet.data.generated import trees
from ampnet.models import TreeLstm
from ampnet.nodes import Linear


def tree_lstm(replicas: int = 1) -> Graph:
    return compile(TreeLstm(100, 8, 8, 5), *next(iter(trees(1, 0))), replicas=Replicate(replicas))


def test_a_graph_is_one_line_of_text_and_a_picture() -> None:
    graph = tree_lstm()
    weights = sum(p.numel() for p in graph.module().parameters())
    shown = f"Compiled(TreeLstm: {len(graph.inputs)} inputs, {len(graph.nodes)} nodes, {weights:,} weights)"
    assert repr(graph) == shown
    assert f"{len(tree_lstm(2).copies)} of them copies" in repr(tree_lstm(2))
    picture = ElementTree.fromstring(graph._repr_svg_())
    assert picture.tag == "{http://www.w3.org/2000/svg}svg"
    text = "".join(picture.itertext())
    assert "TreeLstm" in text
    assert all(name in text for name in ("classify", "loss"))


def test_a_graph_with_faults_is_shown_too() -> None:
    graph = Graph("half")
    graph.add("one", Linear(2, 2))
    graph.connect("one", "two")
    assert repr(graph) == "Graph(half: 0 inputs, 1 nodes, 6 weights)"
    assert "half" in graph._repr_svg_()


def test_runtimes_and_results_are_one_line() -> None:
    torch.manual_seed(0)
    graph = tree_lstm()
    with Inline(graph, max_active_keys=5) as runtime:
        assert repr(runtime) == "Inline(TreeLstm: max_active_keys 5, engine: waves)"
        stats = runtime.infer(trees(3, 0), keep_predictions=True)
    loss, accuracy = f"loss {stats.loss:.4g}", f"accuracy {stats.metrics['accuracy']:.4g}"
    assert repr(stats) == f"StreamStats(infer: 3 instances, {loss}, {accuracy}, {stats.seconds:.2f} s)"
    cut = StreamStats("train", True, 2, 200, 0.5, {}, 1.0, 3, False)
    assert repr(cut) == "StreamStats(train: 2 instances of 200 examples, loss 0.5, 1.00 s, 3 skipped, stopped early)"


def test_an_instance_is_one_line() -> None:
    (tree,) = next(iter(trees(1, 0)))
    made = tree_lstm().instance(tree)  # type: ignore[attr-defined]
    leaves = (len(tree) + 1) // 2
    assert repr(made) == f"Instance({leaves} × tree_word, {len(tree)} × tree_label)"
