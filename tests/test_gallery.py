"""The gallery: every port in `examples/gallery/` is short, exact, in waves, and learns.

A file has three functions, and that is all this test knows of it:

    make_model()               the model
    make_data(count, seed)     instances for it: what `forward` takes, as tuples or dicts
    main()                     trains it a little and prints how that went; the script
"""

from __future__ import annotations

import ast
import copy
import importlib.util
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest
import torch

import ampnet
from ampnet.lang.arguments import arguments_of
from ampnet.testing import assert_compiled, assert_predicts

GALLERY = Path(__file__).parents[1] / "examples" / "gallery"
PORTS = sorted(path.stem for path in GALLERY.glob("*.py"))
LONGEST = 40
"""Lines of all model classes of a file together, docstrings and empty lines left out."""


@pytest.fixture
def port(request: pytest.FixtureRequest) -> ModuleType:
    if request.param.startswith("pyg_"):
        pytest.importorskip("torch_geometric.data")  # which also keeps its warnings to itself
    name = f"gallery_{request.param}"
    spec = importlib.util.spec_from_file_location(name, GALLERY / f"{request.param}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def lines_of_models(path: Path) -> int:
    """Lines with code in the classes of a file."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    count = 0
    for node in ast.parse(text).body:
        if not isinstance(node, ast.ClassDef):
            continue
        texts: set[int] = set()
        for inner in ast.walk(node):
            if isinstance(inner, ast.ClassDef | ast.FunctionDef) and ast.get_docstring(inner) is not None:
                first = inner.body[0]
                texts |= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
        assert node.end_lineno is not None
        code = (n for n in range(node.lineno, node.end_lineno + 1) if n not in texts)
        count += sum(bool(lines[n - 1].strip()) and not lines[n - 1].strip().startswith("#") for n in code)
    return count


@contextmanager
def float64() -> Iterator[None]:
    """Models and data that are made here are in float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("name", PORTS)
def test_the_model_is_short(name: str) -> None:
    assert 0 < lines_of_models(GALLERY / f"{name}.py") < LONGEST


@pytest.mark.parametrize("port", PORTS, indirect=True)
def test_the_graph_computes_what_the_model_computes(port: ModuleType) -> None:
    with torch.random.fork_rng(), float64():
        torch.manual_seed(0)
        model, data = port.make_model(), list(port.make_data(3, seed=0))
        graph = assert_compiled(model, data, max_active_keys=3)
        assert_predicts(model, data, graph=graph, max_active_keys=3)


@pytest.mark.parametrize("port", PORTS, indirect=True)
def test_it_learns_in_waves(port: ModuleType) -> None:
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("error")  # a graph that falls back to message passing warns
        torch.manual_seed(0)
        data = list(port.make_data(40, seed=1))
        graph = ampnet.compile(port.make_model(), *arguments_of(data[0]))
        copy.deepcopy(graph)  # placement and tuning try copies
        update = ampnet.Update(partial(torch.optim.Adam, lr=0.01), min_update_frequency=10, count="instances")
        with ampnet.Inline(graph, update=update, max_active_keys=10) as runtime:
            losses = [runtime.train(graph.instances(data)).loss for _ in range(5)]
            assert runtime.stats().engine == "waves"
    assert losses[-1] < 0.95 * losses[0]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.filterwarnings("ignore:waves are launched operation by operation:ampnet.errors.EngineWarning")
@pytest.mark.parametrize("port", PORTS, indirect=True)
def test_it_learns_the_same_on_a_gpu(port: ModuleType) -> None:
    losses, found = {}, {}
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        data = list(port.make_data(20, seed=1))
        graph = ampnet.compile(port.make_model(), *arguments_of(data[0])).to(device)
        update = ampnet.Update(partial(torch.optim.SGD, lr=0.01), min_update_frequency=10, count="instances")
        with ampnet.Inline(graph, update=update, max_active_keys=10) as runtime:
            losses[device] = [runtime.train(on(device, graph.instances(data))).loss for _ in range(3)]
            found[device] = len(runtime.predict(data))
            assert runtime.stats().engine == "waves"
            assert device == "cpu" or runtime.stats().captured or runtime.stats().uncaptured is not None
    assert losses["cuda"] == pytest.approx(losses["cpu"], rel=1e-3)
    assert found["cuda"] == found["cpu"] == 20


def on(device: str, instances: Iterable[ampnet.Instance]) -> Iterator[ampnet.Instance]:
    """The instances with their payloads on a device."""
    for one in instances:
        feeds = {n: f if f.payload is None else replace(f, payload=f.payload.to(device)) for n, f in one.feeds.items()}
        yield replace(one, feeds=feeds)


@pytest.mark.parametrize("port", PORTS, indirect=True)
def test_it_is_a_script(port: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with torch.random.fork_rng():
        port.main()
    assert capsys.readouterr().out.strip()


def test_the_gallery_is_a_gallery() -> None:
    assert len(PORTS) >= 12
