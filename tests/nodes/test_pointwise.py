"""Programs as elementwise steps of a native call, against torch: every operation, broadcast both ways, and all ways in
which values share memory."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from ampnet import Inline, native
from ampnet.lang import Model, Seq, compile, fold, loss
from ampnet.native import calls
from ampnet.nodes.plan import Plan
from ampnet.nodes.pointwise import as_rows, tensors
from ampnet.nodes.program import Program, Ref
from ampnet.wave.kernels.rows import ByProgram
from tests.wave.both import assert_same, outcome, player_of

pytestmark = pytest.mark.skipif(not native.state().native, reason="kernels are not compiled here")
F32, F64 = torch.float32, torch.float64
ROWS = 37


def computed(plan: Plan, xs: Sequence[Tensor], g: Tensor) -> tuple[Tensor, list[Tensor | None]]:
    """The result, and the gradients of the inputs."""
    line = plan.line
    assert line is not None
    inputs, result = [as_rows(x) for x in xs], as_rows(torch.full_like(g, float("nan")))
    own = [torch.full((ROWS, width), float("nan"), dtype=g.dtype) for width in line.own]
    found = tensors(inputs, result, as_rows(g), line, own)
    assert calls.pointwise(line.forward, ROWS, found)
    assert not line.backward or calls.pointwise(line.backward, ROWS, found)
    passed = zip(line.passed, line.widths, strict=True)
    return result, [None if s is None else found[s[0]][:, s[1] : s[1] + width] for s, width in passed]


def check(program: Program, xs: Sequence[Tensor]) -> Plan:
    xs = [x.requires_grad_() for x in xs]
    plan = Plan(program, xs)
    y = plan.run(xs)[0]
    g = torch.randn_like(y.detach())
    wanted = torch.autograd.grad(y, xs, g, allow_unused=True)
    tolerance = 1e-12 if g.dtype is F64 else 1e-4
    with torch.no_grad():
        result, slopes = computed(plan, [x.detach() for x in xs], g)
    torch.testing.assert_close(result.view(y.shape), y.detach(), rtol=tolerance, atol=tolerance)
    for x, slope, want in zip(xs, slopes, wanted, strict=True):
        if want is None:
            assert slope is None or not slope.any()
        else:
            assert slope is not None
            torch.testing.assert_close(slope.reshape(x.shape), want, rtol=tolerance, atol=tolerance)
    return plan


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("op", ["neg", "relu", "tanh", "sigmoid", "exp", "log", "square", "abs"])
def test_functions_of_one(op: str, dtype: torch.dtype) -> None:
    program = Program(1)
    program.add(op, Ref(0))
    x = torch.randn(ROWS, 19, dtype=dtype)
    check(program, [x.abs() + 0.1 if op == "log" else x])


WIDTHS = [((7,), (7,)), ((7,), (1,)), ((1,), (7,)), ((), (7,)), ((7,), ()), ((), ()), ((1,), (1,)), ((40,), (40,))]


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("op", ["add", "sub", "mul", "div"])
@pytest.mark.parametrize("shapes", WIDTHS)
def test_functions_of_two(shapes: tuple[tuple[int, ...], ...], op: str, dtype: torch.dtype) -> None:
    program = Program(2)
    program.add(op, Ref(0), Ref(1))
    xs = [torch.randn(ROWS, *shape, dtype=dtype) for shape in shapes]
    check(program, [xs[0], xs[1].sign() + xs[1]])


@pytest.mark.parametrize("op", ["add", "sub", "mul", "div"])
@pytest.mark.parametrize("constant", [2.5, torch.tensor(3.0, dtype=F64), torch.arange(1.0, 8, dtype=F64)])
def test_constants_on_either_side(constant: float | Tensor, op: str) -> None:
    for left in (False, True):
        program = Program(1)
        program.add(op, *((constant, Ref(0)) if left else (Ref(0), constant)))
        x = torch.randn(ROWS, 7, dtype=F64)
        check(program, [x.sign() + x])


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("op", ["sum", "mean"])
def test_totals(op: str, keepdim: bool) -> None:
    program = Program(2)
    both = program.add("mul", Ref(0), Ref(1))
    program.add("tanh", program.add(op, both, keepdim=keepdim))
    check(program, [torch.randn(ROWS, 21, dtype=F64), torch.randn(ROWS, 21, dtype=F64)])


def test_what_goes_side_by_side_is_computed_in_place() -> None:
    """An LSTM-like end: no step copies anything but the constant and the input."""
    program = Program(2)
    a, b = program.add("tanh", Ref(0)), program.add("mul", Ref(0), Ref(1))
    inner = program.add("cat", a, 1.5, b)
    program.add("cat", inner, Ref(1), a)
    plan = check(program, [torch.randn(ROWS, 5, dtype=F64), torch.randn(ROWS, 5, dtype=F64)])
    assert plan.line is not None
    names = [calls.POINTWISE[step.what] for step in plan.line.forward]
    assert names == ["tanh", "mul", "copy", "copy", "copy"], "the constant, the input, and `a` for the second time"
    assert plan.line.kept == 0, "all values lie in the result"


def test_gradients_that_meet_and_columns_that_overlap() -> None:
    program = Program(1)
    left, right = program.add("slice", Ref(0), start=0, stop=4), program.add("slice", Ref(0), start=2, stop=6)
    program.add("add", program.add("mul", left, right), program.add("sub", left, right))
    check(program, [torch.randn(ROWS, 6, dtype=F64)])


@pytest.mark.parametrize("stop", [3, 6])
def test_a_result_that_is_columns_of_an_input(stop: int) -> None:
    program = Program(1)
    program.add("slice", Ref(0), start=0, stop=stop)
    check(program, [torch.randn(ROWS, 6, dtype=F64)])


def test_what_has_no_elementwise_steps() -> None:
    x = torch.randn(ROWS, 6, dtype=F64)
    for op, settings_ in (("fill", {"value": 1.0}), ("reshape", {"shape": (2, 3)}), ("call", {"function": torch.sin})):
        program = Program(1)
        program.add(op, Ref(0), **settings_)
        assert Plan(program, [x]).line is None
    program = Program(2)
    program.add("add", Ref(0), Ref(1))
    assert Plan(program, [x, x.to(torch.int64)]).line is None
    assert Plan(program, [x.view(ROWS, 2, 3), x.view(ROWS, 2, 3)]).line is None


@st.composite
def lines(draw: st.DrawFn) -> tuple[Program, int]:
    """Programs on rows of four or one number."""
    inputs = draw(st.integers(1, 3))
    program, wide = Program(inputs), list(range(inputs))
    for _ in range(draw(st.integers(1, 7))):
        pick = st.sampled_from(wide).map(Ref)
        kind = draw(st.sampled_from(["one", "two", "number", "halves", "share"]))
        if kind == "one":
            made = program.add(draw(st.sampled_from(["neg", "tanh", "sigmoid", "relu", "square"])), draw(pick))
        elif kind == "two":
            made = program.add(draw(st.sampled_from(["add", "sub", "mul"])), draw(pick), draw(pick))
        elif kind == "number":
            made = program.add(draw(st.sampled_from(["add", "sub", "mul"])), 0.5, draw(pick))
        elif kind == "halves":
            half = [program.add("slice", draw(pick), start=at, stop=at + 2) for at in (draw(st.integers(0, 2)), 1)]
            made = program.add("cat", *half)
        else:
            total = program.add(draw(st.sampled_from(["sum", "mean"])), draw(pick), keepdim=True)
            made = program.add("mul", total, draw(pick))
        wide.append(made.index)
    return program, inputs


@settings(max_examples=150, deadline=None)
@given(lines(), st.integers(0, 1000))
def test_any_program(drawn: tuple[Program, int], seed: int) -> None:
    program, inputs = drawn
    torch.manual_seed(seed)
    check(program, [torch.randn(ROWS, 4, dtype=F64) for _ in range(inputs)])


class Decaying(Model):
    """A loop whose state is rows of the arena that it reads: gradients are passed on unchanged."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(4, 4)

    def forward(self, xs: Seq, y: Tensor) -> None:
        h = fold(lambda x, h: h + torch.sigmoid(self.gate(h)) * x - 0.1 * h, xs, self.zeros(4))
        loss(h, y, "squared_error")


def test_a_loop_is_on_the_tape_and_as_by_messages() -> None:
    torch.manual_seed(0)
    model = Decaying().double()
    drawn = [(Seq(torch.randn(n, 4, dtype=F64)), torch.randn(4, dtype=F64)) for n in (1, 4, 2, 3)]
    graph = compile(model, *drawn[0])
    instances = [graph.instance(*one) for one in drawn]
    want = outcome(graph, instances, waves=False, max_active_keys=4)
    assert_same(outcome(graph, instances, waves=True, max_active_keys=4), want)


def test_a_wave_that_comes_again_plays_programs_from_the_tape() -> None:
    torch.manual_seed(0)
    drawn = [(Seq(torch.randn(n, 4)), torch.randn(4)) for n in (1, 4, 2, 3)]
    graph = compile(Decaying(), *drawn[0])
    instances = [graph.instance(*one) for one in drawn]
    with Inline(graph, max_active_keys=4) as runtime:
        for _ in range(4):
            runtime.train(instances)
        player = player_of(runtime)
        (layouts,) = player.planner._layouts.values()
        tape, operations = layouts[0].tape, layouts[0].operations
        programs = [i for i, op in enumerate(operations) if isinstance(layouts[0].kernels[op.site.number], ByProgram)]
        assert programs
        assert set(programs) <= set(tape.single[False])  # type: ignore[attr-defined]
        later = {i for i in programs if operations[i].round}  # nothing goes back to the zeros before the first round
        assert later <= set(tape.single[True])  # type: ignore[attr-defined]
