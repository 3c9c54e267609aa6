"""Tiles: the gradients, weights and names of the Linear that they make up."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from ampnet import Graph, GraphError, Inline, Instance, Update, feed, tile
from ampnet.data import generated
from ampnet.lang import Compiled, compile
from ampnet.models import Mlp
from ampnet.nodes import Cond, Isu, Linear, Loss, Phi, Relu
from ampnet.placement import place
from ampnet.replicas.replicate import replicate
from ampnet.testing import assert_close, graph_gradients

F64 = torch.float64
BY = st.sampled_from(["outputs", "inputs"])
By = Literal["outputs", "inputs"]
ways = pytest.mark.parametrize("by", ["outputs", "inputs"])


def chain(inputs: int = 5, outputs: int = 4, *, activation: Any = None, bias: bool = True, seed: int = 0) -> Graph:
    """x -> first -> fc -> loss. The gradient of ``first`` tells what came back through ``fc``."""
    torch.manual_seed(seed)
    graph = Graph("chain")
    graph.add("first", Linear(3, inputs, dtype=F64))
    graph.add("fc", Linear(inputs, outputs, dtype=F64, activation=activation, bias=bias))
    graph.add("loss", Loss("squared_error"))
    graph.input("x", "first")
    graph.input("label", "loss.label")
    graph.chain("first", "fc", "loss.prediction")
    return graph


def rows(outputs: int = 4, count: int = 9) -> list[tuple[Tensor, Tensor]]:
    some = torch.Generator().manual_seed(1)
    sizes = [1 + i % 3 for i in range(count)]
    return [tuple(torch.randn(n, w, dtype=F64, generator=some) for w in (3, outputs)) for n in sizes]  # type: ignore[misc]


def instances(data: list[tuple[Tensor, Tensor]]) -> list[Instance]:
    return [Instance({"x": feed(x, messages=1), "label": feed(y, messages=1)}) for x, y in data]


def autograd(graph: Graph, data: list[tuple[Tensor, Tensor]], activation: Any) -> dict[str, Tensor]:
    """The gradients of the same in plain torch."""
    module = graph.module()
    total = torch.zeros((), dtype=F64)
    for x, y in data:
        z = module["fc"](module["first"](x))
        total = total + nn.functional.mse_loss(z if activation is None else getattr(torch, activation)(z), y)
    named = dict(module.named_parameters())
    return dict(zip(named, torch.autograd.grad(total, list(named.values())), strict=True))


def trained(graph: Graph, data: list[Instance], **settings: Any) -> dict[str, Tensor]:
    """The weights after three epochs, one instance at a time."""
    update = Update(partial(torch.optim.SGD, lr=0.05, momentum=0.5), 2, "instances")
    with Inline(graph, update=update, max_active_keys=1, **settings) as runtime:
        for _ in range(3):
            runtime.train(data)
    return {n: w.clone() for n, w in graph.module().state_dict().items()}


@given(
    inputs=st.integers(2, 7),
    outputs=st.integers(2, 7),
    n=st.integers(2, 7),
    by=BY,
    activation=st.sampled_from([None, "relu", "tanh", "sigmoid"]),
    bias=st.booleans(),
    schedule=st.sampled_from(["sweep", "random", "backward-first", "fifo"]),
    size=st.sampled_from([None, 1, 2, 5]),
    waves=st.booleans(),
    seed=st.integers(0, 99),
)
def test_gradients_are_those_of_the_whole_and_of_autograd(
    inputs: int,
    outputs: int,
    n: int,
    by: By,
    activation: Any,
    bias: bool,
    schedule: str,
    size: int | None,
    waves: bool,
    seed: int,
) -> None:
    n = min(n, outputs if by == "outputs" else inputs)
    data = rows(outputs)
    whole, tiled = (chain(inputs, outputs, activation=activation, bias=bias, seed=seed) for _ in range(2))
    assert tile(tiled, "fc", n, by=by) == [f"fc~{i + 1}" for i in range(n)]
    settings: dict[str, Any] = {"schedule": schedule, "seed": seed, "max_active_keys": 4, "waves": waves}
    settings["wave_size" if waves else "max_batch"] = size
    got = graph_gradients(tiled, instances(data), **settings)
    assert list(got) == list(graph_gradients(whole, instances(data)))
    assert_close(got, graph_gradients(whole, instances(data)))
    assert_close(got, autograd(tiled, data, activation))


@ways
@pytest.mark.parametrize("activation", [None, "relu"])
@pytest.mark.parametrize("optimizer", [partial(torch.optim.SGD, lr=0.1), partial(torch.optim.Adam, lr=0.01)])
def test_training_gives_the_weights_of_the_whole(by: By, activation: Any, optimizer: Any) -> None:
    data = instances(rows())
    weights = []
    for n in (1, 3):
        graph = chain(activation=activation)
        if n > 1:
            tile(graph, "fc", n, by=by)
        with Inline(graph, update=Update(optimizer, 2, "instances"), max_active_keys=1) as runtime:
            for _ in range(3):
                runtime.train(data)
        weights.append(graph.module().state_dict())
    assert_close(weights[1], weights[0])


@ways
def test_tiles_are_views_of_the_model_s_own_weights(by: By) -> None:
    """Whoever changes one changes the other, and a state_dict is the same with tiles and without."""
    graph, whole = chain(), chain()
    mine = graph.module()["fc"]
    names = tile(graph, "fc", 3, by=by)
    sizes = [tuple(graph.parameterised()[name].parameters["weight"].shape) for name in names]
    assert sizes == ([(2, 5), (1, 5), (1, 5)] if by == "outputs" else [(4, 2), (4, 2), (4, 1)])
    assert ["bias" in graph.parameterised()[name].parameters for name in names] == [True] + 2 * [by == "outputs"]
    module = graph.module()
    assert module["fc"] is mine
    assert list(module.state_dict()) == list(whole.module().state_dict())
    torch.manual_seed(7)
    other = {name: torch.randn_like(weight) for name, weight in module.state_dict().items()}
    module.load_state_dict(other)
    whole.module().load_state_dict(other)
    data = instances(rows())
    assert_close(graph_gradients(graph, data), graph_gradients(whole, data))
    before = mine.weight.detach().clone()
    trained(graph, data)
    assert bool((mine.weight != before).all())


@ways
def test_a_cast_keeps_tiles_tied(by: By) -> None:
    graph = chain().to(torch.float32)
    tile(graph, "fc", 2, by=by)
    graph.to(F64)
    mine = graph.module()["fc"]
    assert mine.weight.dtype is F64
    whole = chain().to(torch.float32).to(F64)
    data = instances(rows())
    assert_close(trained(graph, data), trained(whole, data))
    assert torch.equal(mine.weight, graph.module()["fc"].weight)


@ways
def test_a_cast_of_the_model_itself_is_seen_by_the_next_runtime(by: By) -> None:
    graph = chain().to(torch.float32)
    tile(graph, "fc", 2, by=by)
    graph.module().to(F64)
    graph.module()["fc"].weight.requires_grad_(False)
    whole = chain().to(torch.float32).to(F64)
    whole.module()["fc"].weight.requires_grad_(False)
    data = instances(rows())
    assert_close(trained(graph, data), trained(whole, data))


@pytest.mark.parametrize("how", [{"max_batch": 2, "waves": False}, {"wave_size": 2}], ids=["messages", "waves"])
@ways
def test_a_linear_with_several_sites(by: By, how: dict[str, Any]) -> None:
    def twice() -> Graph:
        torch.manual_seed(2)
        graph = Graph("twice")
        graph.add("fc", Linear(3, 3, dtype=F64, activation="tanh").with_sites([("instance",), None]))
        graph.add("relu", Relu())
        graph.add("loss", Loss("squared_error"))
        graph.input("x", "fc.in")
        graph.input("label", "loss.label")
        graph.chain("fc.out", "relu", "fc.in2")
        graph.connect("fc.out2", "loss.prediction")
        return graph

    data = instances(rows(3))
    graph = twice()
    assert tile(graph, "fc", 2, by=by) == ["fc~1", "fc~2"]
    assert list(graph.nodes)[:6] == ["fc_spread", "fc_spread2", "fc~1", "fc~2", "fc_together", "fc_together2"]
    got = graph_gradients(graph, data, schedule="random", max_active_keys=4, **how)
    assert_close(got, graph_gradients(twice(), data))


@pytest.mark.parametrize("how", [{"max_batch": 2, "waves": False}, {"wave_size": 2}], ids=["messages", "waves"])
@ways
def test_a_linear_in_a_loop(by: By, how: dict[str, Any]) -> None:
    def loop() -> Graph:
        torch.manual_seed(3)
        graph = Graph("loop")
        graph.add("phi", Phi())
        graph.add("fc", Linear(3, 3, dtype=F64, activation="relu"))
        graph.add("isu", Isu(lambda s: s.replace(t=s.t + 1), lambda s: s.replace(t=s.t - 1)))
        graph.add("cond", Cond(lambda s: s.t < 1 + s.instance % 3, ("done", "again")))
        graph.add("loss", Loss("squared_error", key=("instance",)))
        graph.input("x", "phi.start", ("t",))
        graph.input("label", "loss.label")
        graph.chain("phi", "fc", "isu", "cond")
        graph.connect("cond.again", "phi.loop")
        graph.connect("cond.done", "loss.prediction")
        return graph

    data = [Instance({"x": feed(x, messages=1, t=0), "label": feed(y, messages=1)}) for x, y in rows(3)]
    graph, whole = loop(), loop()
    tile(graph, "fc", 3, by=by)
    got = graph_gradients(graph, data, schedule="random", seed=4, max_active_keys=5, **how)
    assert_close(got, graph_gradients(whole, data, max_active_keys=5))
    with Inline(graph) as one, Inline(whole) as other:
        assert one.infer(data).loss == pytest.approx(other.infer(data).loss, abs=1e-12)


def test_a_tile_may_be_tiled_again() -> None:
    """By outputs and then by inputs: a grid."""
    graph, whole = chain(activation="tanh").to(torch.float32), chain(activation="tanh").to(torch.float32)
    tile(graph, "fc", 2)
    for name in ("fc~1", "fc~2"):
        assert tile(graph, name, 2, by="inputs") == [f"{name}~1", f"{name}~2"]
    for each in (graph, whole):
        each.to(F64)
    data = instances(rows())
    assert_close(graph_gradients(graph, data), graph_gradients(whole, data))
    assert_close(trained(graph, data), trained(whole, data))


def mlp() -> tuple[Compiled, list[tuple[Any, ...]]]:
    torch.manual_seed(0)
    data = [(image.double(), label) for image, label in generated.images(6, 0, 12, 4)]
    return compile(Mlp(12, 3, 4).double(), *data[0]), data


def test_the_front_end_tiles_by_the_name_of_a_module() -> None:
    example = next(generated.images(1, 0, width=12, classes=4))
    assert "hidden_1~2" in compile(Mlp(12, 3, 4), *example, tiles={"hidden.1": 2}).nodes  # once: "cannot be replicated"
    graph = compile(Mlp(12, 3, 4), *example, tiles={"hidden.1": 2}, replicas={"classify": 2})
    assert {"hidden_0", "hidden_1~1", "hidden_1~2", "classify#1", "classify#2"} <= set(graph.nodes)
    assert "hidden_1" not in graph.nodes
    with pytest.raises(GraphError, match="no node is called 'hidden_7'"):
        compile(Mlp(12, 3, 4), *example, tiles={"hidden.7": 2})


@ways
def test_a_compiled_model(by: By) -> None:
    graph, data = mlp()
    tile(graph, "hidden_0", 3, by=by)
    tile(graph, "classify", 2, by=by)
    whole, _ = mlp()
    some = [whole.instance(*arguments) for arguments in data]
    got = graph_gradients(graph, [graph.instance(*arguments) for arguments in data])
    assert_close(got, graph_gradients(whole, some))
    before = {n: p.detach().clone() for n, p in graph.model.named_parameters()}
    trained(graph, some)
    trained(whole, some)
    assert all(bool((before[n] != p).any()) for n, p in graph.model.named_parameters())
    assert_close(dict(graph.model.named_parameters()), dict(whole.model.named_parameters()))
    graph.to(torch.float32)
    assert graph.nodes["hidden_0~2"].module.weight.dtype is torch.float32  # type: ignore[attr-defined]


@ways
def test_explain_shows_one_value_in_tiles(by: By) -> None:
    graph, _ = mlp()
    tile(graph, "hidden_1", 4, by=by)
    (line,) = (line for line in graph.explain().splitlines() if line.startswith("hidden_1 "))
    assert "Linear 12→12 + relu in 4 tiles" in line and "mlp.py" in line
    assert graph.draw().count("Linear 12→3" if by == "outputs" else "Linear 3→12") == 4
    assert "mlp.py" in graph.notes["hidden_1~3"] and "hidden_1" not in graph.notes


def test_explain_shows_one_value_in_replicas() -> None:
    graph, _ = mlp()
    replicate(graph, "hidden_0", 2)
    (line,) = (line for line in graph.explain().splitlines() if line.startswith("hidden_0 "))
    assert "Linear 12→12 + relu × 2 replicas" in line and "mlp.py" in line


@ways
@pytest.mark.parametrize("first", ["tiles", "replicas"])
def test_tiles_beside_replicas(by: By, first: str) -> None:
    graph, data = chain(), instances(rows())
    steps = [lambda: tile(graph, "fc", 2, by=by), lambda: replicate(graph, "first", 2)]
    for step in steps if first == "tiles" else reversed(steps):
        step()
    assert_close(graph_gradients(graph, data, max_active_keys=4), graph_gradients(chain(), data))
    for name in ("first", "first#2"):
        with pytest.raises(GraphError, match="a Linear is one or the other"):
            tile(graph, name, 2)


def test_tiles_land_on_different_workers() -> None:
    graph = chain(64, 64)
    tile(graph, "fc", 2)
    hosts = place(graph, 2)
    assert {hosts["fc~1"], hosts["fc~2"]} == {0, 1}


def test_wrong_wishes_name_what_there_is() -> None:
    graph = chain()
    with pytest.raises(GraphError, match=r"no node is called 'fd'.*; there are: first, fc"):
        tile(graph, "fd", 2)
    with pytest.raises(GraphError, match=r"'loss' is a Loss.*only a Linear"):
        tile(graph, "loss", 2)
    with pytest.raises(ValueError, match=r"'fc' has 4 outputs: it can be made 2 to 4 tiles, got 5"):
        tile(graph, "fc", 5)
    with pytest.raises(ValueError, match=r"5 inputs.*got 1"):
        tile(graph, "fc", 1, by="inputs")
    with pytest.raises(ValueError, match=r"by 'outputs' or by 'inputs', got 'rows'"):
        tile(graph, "fc", 2, by="rows")  # type: ignore[arg-type]
    graph.add("fc_spread", Relu())
    with pytest.raises(GraphError, match=r"the name 'fc_spread' is needed"):
        tile(graph, "fc", 2)
    del graph.nodes["fc_spread"]
    graph.connect("fc.left", "loss.prediction")
    with pytest.raises(GraphError, match=r"'fc.left' names no port of 'fc'; it has out"):
        tile(graph, "fc", 2)
    graph.edges.pop()
    assert list(graph.nodes) == ["first", "fc", "loss"] and not graph.tiled
    graph.validate()
    tile(graph, "fc", 2)
    with pytest.raises(GraphError, match=r"'fc' is tiled already, as fc~1, fc~2"):
        tile(graph, "fc", 2)
    assert not Graph().tiled
    with pytest.raises(GraphError, match="there is no Linear"):
        tile(Graph(), "fc", 2)


def test_what_cannot_be_tiled_is_refused() -> None:
    graph = chain()
    linear = graph.nodes["fc"].module  # type: ignore[attr-defined]
    tied = nn.Linear(5, 4, dtype=F64)
    tied.weight = linear.weight
    graph.add("tied", Linear(tied))
    with pytest.raises(GraphError, match="'fc' shares a parameter with 'tied'"):
        tile(graph, "fc", 2)
    graph = chain()
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(5, 4))
    graph.nodes["fc"] = Linear(normed)
    with pytest.raises(GraphError, match="a tile has weight and bias only"):
        tile(graph, "fc", 2)


def test_a_runtime_that_was_made_before_is_over() -> None:
    graph = chain()
    with Inline(graph) as runtime:
        tile(graph, "fc", 2)
        with pytest.raises(GraphError, match="another runtime"):
            runtime.train(instances(rows()))


def test_the_example_of_the_page_runs() -> None:
    page = Path(__file__).parents[1] / "docs" / "ir.md"
    (code,) = re.findall(r"## Tiles.*?```python\n(.*?)```", page.read_text(encoding="utf-8"), re.S)
    with torch.random.fork_rng():
        exec(code, {"__name__": "tiles"})
