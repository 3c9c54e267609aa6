"""Drawings: the loops found in a graph, the Mermaid text, the layout and the files."""

from __future__ import annotations

import random
import re
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from typing import IO

import matplotlib as mpl
import numpy as np
import pytest
import torch
from matplotlib.image import imread
from torch import Tensor, nn

from ampnet.data import generated
from ampnet.draw import KINDS, LOOP, draw, heat, mermaid, picture, sketch
from ampnet.draw.layout import TALLEST, Box, Curve, Layout, Link, arrange, layers
from ampnet.graph import Graph
from ampnet.lang import Model, compile, loss
from ampnet.loops import back_edges
from ampnet.models import Qm9, TreeLstm, by_hand, list_reduction
from ampnet.nodes import (
    Bcast,
    Concat,
    Cond,
    Embedding,
    Flatmap,
    Group,
    GruCell,
    Isu,
    Linear,
    Loss,
    Phi,
    Reduce,
    Relu,
)


def ggsnn() -> Graph:
    """The GGSNN of the paper's figure: in each step messages run along typed edges and meet at a GRU cell."""
    graph = Graph("GGSNN")
    graph.add("embedding", Embedding(5, 8))
    graph.add("phi", Phi(("start", "loop")))
    graph.add("bcast", Bcast(("along", "keep")))
    graph.add("edges", Flatmap(lambda s: (s.instance, s)))
    graph.add("by type", Cond(lambda s: s.type, ("single", "double", "triple", "aromatic")))
    for name in ("single", "double", "triple", "aromatic"):
        graph.add(f"linear {name}", Linear(8, 8))
        graph.connect(f"by type.{name}", f"linear {name}")
        graph.connect(f"linear {name}", f"any type.{name}")
    graph.add("any type", Phi(("single", "double", "triple", "aromatic")))
    graph.add("at target", Group(lambda s: s, lambda s: s.instance))
    graph.add("total", Reduce("sum"))
    graph.add("concat", Concat(("m", "h")))
    graph.add("gru", GruCell(nn.GRUCell(8, 8)))
    graph.add("isu", Isu(lambda s: s.replace(step=s.step + 1), lambda s: s.replace(step=s.step - 1)))
    graph.add("cond", Cond(lambda s: s.step < 4, ("done", "again")))
    graph.add("all nodes", Group(lambda s: s, lambda s: s.instance))
    graph.add("readout", Reduce("sum"))
    graph.add("linear out", Linear(8, 1))
    graph.add("loss", Loss("squared_error"))
    graph.input("label", "loss.label")
    graph.input("nodes", "embedding", fields=("node", "step"))
    graph.chain("embedding", "phi.start")
    graph.chain("phi", "bcast")
    graph.connect("bcast.along", "edges")
    graph.connect("edges", "by type")
    graph.chain("any type", "at target", "total")
    graph.connect("total", "concat.m")
    graph.connect("bcast.keep", "concat.h")
    graph.chain("concat", "gru", "isu", "cond")
    graph.connect("cond.again", "phi.loop")
    graph.connect("cond.done", "all nodes")
    graph.chain("all nodes", "readout", "linear out")
    graph.connect("linear out", "loss.prediction")
    return graph


def replicated(copies: int = 3) -> Graph:
    """Linear-1 of an RNN as replicas behind Cond and Phi."""
    ports = [f"r{k}" for k in range(1, copies + 1)]
    graph = Graph("RNN with replicas")
    graph.add("embedding", Embedding(5, 8))
    graph.add("phi", Phi(("start", "loop")))
    graph.add("concat", Concat(("x", "h")))
    graph.add("route", Cond(lambda s: s.instance % copies, ports))
    for k, port in enumerate(ports, 1):
        graph.add(f"linear1#{k}", Linear(16, 8))
        graph.connect(f"route.{port}", f"linear1#{k}")
        graph.connect(f"linear1#{k}", f"join.{port}")
    graph.add("join", Phi(ports))
    graph.add("relu", Relu())
    graph.add("isu", Isu(lambda s: s.replace(t=s.t + 1), lambda s: s.replace(t=s.t - 1)))
    graph.add("cond", Cond(lambda s: s.t < s.length, ("done", "again")))
    graph.add("loss", Loss("cross_entropy", key=("instance",)))
    graph.input("h0", "phi.start", fields=("t", "length"))
    graph.input("tokens", "embedding", fields=("t", "length"))
    graph.input("label", "loss.label")
    graph.connect("embedding", "concat.x")
    graph.connect("phi", "concat.h")
    graph.chain("concat", "route")
    graph.chain("join", "relu", "isu", "cond")
    graph.connect("cond.again", "phi.loop")
    graph.connect("cond.done", "loss.prediction")
    return graph


def nested() -> Graph:
    """A loop in a loop."""
    graph = Graph("nested")
    for name in ("outer", "inner"):
        graph.add(name, Phi(("start", "loop")))
    graph.add("body", Relu())
    graph.add("more", Cond(lambda s: s.t < 2, ("out", "again")))
    graph.add("repeat", Cond(lambda s: s.t < 2, ("out", "again")))
    graph.add("loss", Loss())
    graph.input("x", "outer.start")
    graph.input("label", "loss.label")
    graph.connect("outer", "inner.start")
    graph.chain("inner", "body", "more")
    graph.connect("more.again", "inner.loop")
    graph.connect("more.out", "repeat")
    graph.connect("repeat.again", "outer.loop")
    graph.connect("repeat.out", "loss.prediction")
    return graph


def chain(length: int = 50) -> Graph:
    graph = Graph("chain")
    names = [f"layer {i}" for i in range(length)]
    for name in names:
        graph.add(name, Relu())
    graph.input("x", names[0])
    graph.chain(*names)
    return graph


def long_loop() -> Graph:
    """A loop that no band can hold."""
    graph = chain(80)
    graph.add("phi", Phi(("start", "loop")))
    graph.add("cond", Cond(lambda s: s.t < 2, ("out", "again")))
    graph.inputs.clear()
    graph.input("x", "phi.start")
    graph.connect("phi", "layer 0")
    graph.connect("layer 79", "cond")
    graph.connect("cond.again", "phi.loop")
    return graph


def compiled_tree() -> Graph:
    return compile(TreeLstm(100), *next(generated.trees(1, seed=1)))


def compiled_molecule() -> Graph:
    return compile(Qm9(10), *next(generated.molecules(1, seed=1)))


NASTY = (
    'say "hi"',
    "<b>bold</b> & co",
    "style:#1;2",
    "`code`",
    "- item",
    "$x^2$",
    "end",
    "a|b]}--&gt;",
    "日本",
    "new\nline",
)


def broken() -> Graph:
    """Names that mean something to Mermaid, SVG or matplotlib, and every fault that wiring can have."""
    graph = Graph('a "broken" <graph>: $x$')
    for name in NASTY:
        graph.add(name, Relu())
    graph.chain(*NASTY[:4])
    graph.connect(NASTY[3], NASTY[1])  # a loop that no Phi opens, and an input fed twice
    graph.connect(NASTY[4], NASTY[4])
    graph.add("half", Concat(("left", "right")))
    graph.connect(NASTY[5], "half.right")
    graph.connect("nowhere", "half.left")
    graph.connect("half.wrong", NASTY[6])
    graph.input("lost", "nowhere")
    return graph


GRAPHS: list[Callable[[], Graph]] = [
    by_hand.build,
    ggsnn,
    replicated,
    lambda: replicated(16),
    nested,
    chain,
    long_loop,
    broken,
    Graph,
    list_reduction.build,
    compiled_tree,
    compiled_molecule,
]
NAMES = ["list reduction", "ggsnn", "replicas", "16 replicas", "nested", "chain", "long loop", "broken", "empty"]
NAMES += ["compiled RNN", "compiled tree", "compiled molecule"]
every_graph = pytest.mark.parametrize("build", GRAPHS, ids=NAMES)


def loops(graph: Graph) -> set[str]:
    wiring, _ = graph.resolve()
    return {f"{s.node} -> {wiring.forward[s].node}" for s in back_edges(graph.nodes, wiring.forward)}


def test_a_loop_closes_where_it_enters_its_phi() -> None:
    assert loops(by_hand.build()) == {"cond -> phi"}
    assert loops(ggsnn()) == {"cond -> phi"}
    assert loops(nested()) == {"more -> inner", "repeat -> outer"}
    assert loops(chain()) == set()


def test_the_order_of_inputs_does_not_move_the_end_of_a_loop() -> None:
    """Once the loop was cut by `Graph.order` alone. With tokens declared after h0, that walk came to concat before phi
    and phi -> concat was drawn as the edge that closes the loop."""
    graph = replicated()
    assert loops(graph) == {"cond -> phi"}
    graph.inputs.reverse()
    assert loops(graph) == {"cond -> phi"}


def test_loops_without_phi_are_cut_once() -> None:
    graph = Graph()
    for name in "abc":
        graph.add(name, Relu())
    graph.chain("a", "b", "c", "a")
    assert loops(graph) == {"c -> a"}
    alone = Graph()
    alone.add("a", Relu())
    alone.connect("a", "a")
    assert loops(alone) == {"a -> a"}


def test_mermaid_tells_kinds_loops_and_ports_apart() -> None:
    text = mermaid(ggsnn())
    for kind in KINDS:
        assert f"classDef {kind} " in text
    ids = dict(re.findall(r'(n\d+)[^\w\s]+"(.+?)<br/>', text))
    by_name = {name: i for i, name in ids.items()}
    assert len(by_name) == len(ggsnn().nodes) + 1  # and the input with fields; the other has no second line
    assert f'{by_name["phi"]}{{{{"phi<br/>Phi"}}}}' in text
    assert f'{by_name["linear out"]}["linear out<br/>Linear 8→1"]' in text
    assert f'{by_name["total"]}("total<br/>sum")' in text
    assert f'{by_name["concat"]}[/"concat<br/>Concat"\\]' in text
    assert f'{by_name["nodes"]}(["nodes<br/>node, step"])' in text
    assert f'{by_name["cond"]} -.->|"again → loop"| {by_name["phi"]}' in text
    assert f'{by_name["cond"]} -->|"done →"| {by_name["all nodes"]}' in text
    assert f'{by_name["bcast"]} -->|"keep → h"| {by_name["concat"]}' in text
    assert f"{by_name['gru']} --> {by_name['isu']}" in text
    controls = re.search(r"class (\S+) control", text)
    assert controls
    assert set(controls[1].split(",")) == {by_name[n] for n in ("phi", "by type", "any type", "isu", "cond")}


def test_mermaid_colours_exactly_the_edges_that_close_loops() -> None:
    lines = mermaid(nested()).splitlines()
    edges = [line for line in lines if "-->" in line or "-.->" in line]
    style = next(line for line in lines if "linkStyle" in line)
    assert LOOP in style
    assert style.split()[1].split(",") == [str(i) for i, edge in enumerate(edges) if "-.->" in edge]
    assert sum("-.->" in edge for edge in edges) == 2
    assert "linkStyle" not in mermaid(chain())


def test_mermaid_puts_replicas_into_a_box() -> None:
    text = mermaid(replicated())
    inside = re.search(r'subgraph r0\["linear1 × 3"\]\n(.*?)\n    end\n', text, re.DOTALL)
    assert inside
    assert [re.search(r'"(.+?)<', line)[1] for line in inside[1].splitlines()] == [f"linear1#35;{k}" for k in (1, 2, 3)]  # type: ignore[index]
    single = Graph()
    single.add("linear#1", Relu())
    assert "subgraph" not in mermaid(single)


def test_mermaid_labels_hold_nothing_that_mermaid_reads() -> None:
    text = mermaid(broken())
    bodies = [line for line in text.splitlines() if "<br/>" in line]
    assert len(bodies) == len(broken().nodes)
    for line in bodies:
        label = re.fullmatch(r'    n\d+[(\[{/]+"(.*)"[)\]}\\]+', line)
        assert label, line
        plain = re.sub(r"#\d+;", "", label[1].replace("<br/>", ""))
        assert not set(plain) & set('"<>#;:`$|[]{}&'), line
        assert not plain.startswith("-")
    decoded = re.sub(r"#(\d+);", lambda m: chr(int(m[1])), text)
    for name in NASTY:
        assert name.replace("\n", " ") in decoded
    assert text.splitlines()[1] == r'title: "a \"broken\" <graph>: $x$"'


def test_a_compiled_graph_says_scope_and_source_line_of_every_node() -> None:
    graph = compiled_molecule()
    assert set(graph.notes) == {*graph.nodes, *(i.name for i in graph.inputs)}
    label = re.compile(r"instance[^\n]*<br/>ggsnn#46;py#58;\d+\"")
    shapes = [line for line in mermaid(graph).splitlines() if re.match(r"    n\d+[(\[{]", line)]
    assert len(shapes) == len(graph.notes)
    for shape in shapes:
        assert label.search(shape), shape
    assert re.search("round_loop<br/>Loop<br/>again, round [^/]* 4<br/>instance × atoms × round<br/>", mermaid(graph))


def test_a_module_called_in_two_places_names_both_lines() -> None:
    class Twice(Model):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x: Tensor, y: Tensor) -> None:
            h = self.layer(x)
            h = self.layer(h)
            loss(h, y, "squared_error")

    *_, scope, lines = compile(Twice(), torch.zeros(3), torch.zeros(3)).notes["layer"].splitlines()
    first, second = (int(line.removeprefix("test_draw.py:")) for line in lines.split(", "))
    assert (scope, second) == ("instance", first + 1)


def test_boxes_hold_their_notes(tmp_path: Path) -> None:
    graph = compiled_molecule()
    drawing = sketch(graph)
    bare = Graph()
    bare.nodes, bare.inputs, bare.edges = graph.nodes, graph.inputs, graph.edges
    for shape, without in zip(picture.measure(drawing), picture.measure(sketch(bare)), strict=True):
        assert shape.note
        assert not without.note
        assert shape.box.height >= without.box.height + picture.NOTE_LINE * len(shape.note)
        sides = 2 * picture.SIDE[shape.item.kind]
        for line in shape.note:
            assert len(line) <= picture.NOTE_WIDTH
            assert picture.extent(line, picture.NOTE) <= shape.box.width - sides + 1e-9
    graph.draw(tmp_path / "graph.svg")
    texts = [element.text for element in ET.parse(tmp_path / "graph.svg").iter("{http://www.w3.org/2000/svg}text")]
    assert "instance × bonds × round" in texts
    assert "where real and option3" in texts
    assert sum(text.startswith("ggsnn.py:") for text in texts if text) == len(graph.notes)


def test_draw_without_a_path_only_gives_the_text() -> None:
    graph = by_hand.build()
    assert draw(graph) == mermaid(graph) == graph.draw() == graph.mermaid()


@every_graph
def test_every_graph_can_be_drawn(build: Callable[[], Graph], tmp_path: Path) -> None:
    graph = build()
    assert draw(graph, tmp_path / "graph.svg") == mermaid(graph)
    texts = [element.text for element in ET.parse(tmp_path / "graph.svg").iter("{http://www.w3.org/2000/svg}text")]
    for name in [graph.name, *graph.nodes, *(i.name for i in graph.inputs)]:
        assert name.replace("\n", " ") in texts
    for kind in {node.kind for node in graph.nodes.values()}:
        assert kind in texts  # the legend
    assert ("closes a loop" in texts) == bool(loops(graph))
    assert list(tmp_path.iterdir()) == [tmp_path / "graph.svg"]


def test_formats(tmp_path: Path) -> None:
    graph = nested()
    for ending in ("png", "pdf", "mmd", "SVG"):
        draw(graph, str(tmp_path / f"graph.{ending}"))
    pixels = imread(tmp_path / "graph.png")
    assert min(pixels.shape[:2]) > 300
    colours = {tuple(c) for c in np.unique((255 * pixels[..., :3]).round().astype(int).reshape(-1, 3), axis=0).tolist()}
    for colour in (LOOP, KINDS["control"].fill, KINDS["loss"].line):
        assert tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5)) in colours
    assert (pixels[0, :, :3] == 1).all()  # nothing reaches the rim
    assert (pixels[:, -1, :3] == 1).all()
    assert (tmp_path / "graph.pdf").read_bytes().startswith(b"%PDF")
    assert (tmp_path / "graph.mmd").read_text(encoding="utf-8") == mermaid(graph)
    ET.parse(tmp_path / "graph.SVG")
    with pytest.raises(ValueError, match=r"graph\.gif.*\.svg, \.png, \.pdf, \.mmd"):
        draw(graph, tmp_path / "graph.gif")
    with pytest.raises(ValueError, match=r"\.mmd"):
        draw(graph, tmp_path / "graph")


def test_equal_graphs_give_equal_files_and_leave_matplotlib_alone(tmp_path: Path) -> None:
    settings, pyplot = dict(mpl.rcParams), "matplotlib.pyplot" in sys.modules
    for name in ("a.svg", "b.svg"):
        draw(replicated(), tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert dict(mpl.rcParams) == settings
    assert ("matplotlib.pyplot" in sys.modules) == pyplot


def test_a_failed_drawing_leaves_no_file_and_keeps_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "graph.png"
    path.write_text("old")

    def fail(drawing: object, where: IO[bytes], form: str) -> None:
        where.write(b"half of a pict")
        raise OSError("disk full")

    monkeypatch.setattr(picture, "save", fail)
    with pytest.raises(OSError, match="disk full"):
        draw(nested(), path)
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("graph.png", "old")]


def test_marks_show_hot_nodes(tmp_path: Path) -> None:
    marks = {"linear1": 0.62, "relu": 0.0123, "loss": 1.0000001}
    text = draw(by_hand.build(), tmp_path / "hot.svg", marks=marks)
    assert "62 #37;" in text
    assert f"stroke:{heat(0.62)},stroke-width:4px" in text
    svg = (tmp_path / "hot.svg").read_text(encoding="utf-8")
    for share in ("62 %", "1.2 %", "100 %"):
        assert f">{share}</text>" in svg
    assert heat(0.62) in svg
    reds = [int(heat(s)[3:5], 16) for s in (0.0, 0.1, 0.3, 0.6, 1.0)]
    assert reds == sorted(reds, reverse=True)  # less green: hotter
    with pytest.raises(ValueError, match=r"'linear7'.*linear1, relu"):
        draw(by_hand.build(), marks={"linear7": 0.5})
    for wrong in (1.5, -0.1, float("nan")):
        with pytest.raises(ValueError, match="from 0 to 1"):
            draw(by_hand.build(), marks={"relu": wrong})


def arranged(graph: Graph) -> Layout:
    drawing = sketch(graph, dict.fromkeys(graph.nodes, 0.1))
    shapes = picture.measure(drawing)
    return arrange([s.box for s in shapes], picture.links(drawing, shapes))


def sampled(curve: Curve) -> Iterator[tuple[float, float]]:
    for k in range(0, len(curve) - 1, 3):
        points = np.array(curve[k : k + 4])
        for t in np.linspace(0, 1, 12):
            x, y = np.array([(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3]) @ points
            yield float(x), float(y)


def check(layout: Layout) -> None:
    """No two boxes meet, no line runs through a box, and all is on the sheet."""
    for a, b in combinations(layout.boxes, 2):
        assert a.right < b.left or b.right < a.left or a.bottom < b.top or b.bottom < a.top
    small = 1e-6
    sides = np.array([(b.left + small, b.top + small, b.right - small, b.bottom - small) for b in layout.boxes])
    for box in layout.boxes:
        assert min(box.left, box.top) >= -small
        assert box.right <= layout.width + small
        assert box.bottom <= layout.height + small
    for link in layout.links:
        source, target = layout.boxes[link.source], layout.boxes[link.target]
        assert link.curve[0] == pytest.approx((source.x + link.start, source.bottom))
        assert link.curve[-1] == pytest.approx((target.x + link.end, target.top))
        assert link.curve[-1][1] > link.curve[-2][1]  # it comes in from above
        x, y = np.array(list(sampled(link.curve))).T
        assert min(x.min(), y.min()) >= -small
        assert x.max() <= layout.width + small
        assert y.max() <= layout.height + small
        left, top, right, bottom = sides.T[:, :, None]
        assert not ((left < x) & (x < right) & (top < y) & (y < bottom)).any()


@pytest.mark.filterwarnings("ignore:Glyph")
@every_graph
def test_boxes_and_lines_keep_clear_of_each_other(build: Callable[[], Graph]) -> None:
    check(arranged(build()))


@pytest.mark.parametrize("seed", range(12))
def test_any_tangle_keeps_clear(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.randint(1, 40)
    boxes = [Box(rng.uniform(0.5, 2), rng.uniform(0.3, 0.8), rng.choice(["", "", "", "r", "q"])) for _ in range(count)]
    made = []
    for _ in range(rng.randint(0, 2 * count)):
        a, b = rng.randrange(count), rng.randrange(count)
        made.append(Link(a, b, rng.uniform(-0.2, 0.2), rng.uniform(-0.2, 0.2), back=a >= b or rng.random() < 0.1))
    layout = arrange(boxes, made)
    check(layout)
    assert sum(frame.count for frame in layout.frames) == sum(bool(b.group) for b in boxes)


def test_layers_follow_the_links_and_inputs_stand_above_what_they_feed() -> None:
    graph = by_hand.build()
    layout = arranged(graph)
    for link in layout.links:
        assert (layout.boxes[link.target].layer > layout.boxes[link.source].layer) != link.back
    layer = dict(
        zip([*(f"input {i.name}" for i in graph.inputs), *graph.nodes], [b.layer for b in layout.boxes], strict=True)
    )
    assert layer["input label"] == layer["loss"] - 1
    assert layer["input tokens"] == layer["embedding"] - 1
    with pytest.raises(ValueError, match="loop"):
        layers(2, [Link(0, 1), Link(1, 0)])


def test_lines_of_a_chain_are_straight() -> None:
    layout = arranged(by_hand.build())
    straight = [k for k in layout.links if max(x for x, _ in k.curve) - min(x for x, _ in k.curve) < 0.01]
    assert len(straight) >= 7  # tokens, h0, and all the way from concat to linear2


def test_loops_run_beside_the_boxes_they_pass() -> None:
    layout = arranged(nested())
    for link in (k for k in layout.links if k.back):
        passed = range(layout.boxes[link.target].layer, layout.boxes[link.source].layer + 1)
        x = [x for x, _ in link.curve]
        beside = [b for b in layout.boxes if b.layer in passed]
        assert max(x) > max(b.right for b in beside) or min(x) < min(b.left for b in beside)


def test_replicas_stand_side_by_side_in_one_frame() -> None:
    layout = arranged(replicated(5))
    (frame,) = layout.frames
    replicas = [b for b in layout.boxes if b.group]
    assert (frame.group, frame.count) == ("linear1", 5)
    assert [b.x for b in replicas] == sorted(b.x for b in replicas)
    for box in layout.boxes:
        inside = frame.left < box.left and box.right < frame.right and frame.top < box.top and box.bottom < frame.bottom
        assert inside == bool(box.group)


def test_long_graphs_are_broken_into_bands_where_few_lines_cross() -> None:
    tall, loop = arranged(chain(50)), arranged(ggsnn())
    assert tall.bands == 4
    assert tall.height < TALLEST
    assert 1 / 3 < tall.width / tall.height < 3
    assert loop.bands == 1  # two bands would cut the loop
    assert loop.height < TALLEST
    assert arranged(long_loop()).bands > 2
    assert arranged(by_hand.build()).bands == 1
