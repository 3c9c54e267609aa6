"""Rows: every operation, alone and in random programs, against autograd over one row at a time, in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ampnet.errors import GraphError, PairingError, PayloadError
from ampnet.message import Messages, offsets_of
from ampnet.nodes import Program, Ref, Rows
from ampnet.nodes.node import Direction, Outputs, Report
from ampnet.nodes.operations import READY
from ampnet.nodes.program import OPERATIONS, Operand
from ampnet.state import States
from ampnet.testing import assert_close

F64 = torch.float64

MEANING: dict[str, Callable[..., Tensor]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "neg": lambda x: -x,
    "relu": torch.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "exp": torch.exp,
    "log": torch.log,
    "square": lambda x: x * x,
    "abs": torch.abs,
    "cat": lambda *xs: torch.cat([torch.as_tensor(x, dtype=F64).reshape(-1) for x in xs]),
    "slice": lambda x, start, stop: x[..., start:stop],
    "sum": lambda x, keepdim: x.sum(-1, keepdim=keepdim),
    "mean": lambda x, keepdim: x.mean(-1, keepdim=keepdim),
    "reshape": lambda x, shape: x.reshape(shape),
    "fill": lambda x, value: value,
    "call": lambda *xs, function: function(*xs),
}
"""What each operation means for one row."""


def one_row(program: Program, xs: Sequence[Tensor]) -> Tensor:
    """The program on one row of each input, in plain torch."""
    values = list(xs)
    for step in program.steps:
        values.append(
            MEANING[step.op](*(values[o.index] if isinstance(o, Ref) else o for o in step.operands), **step.settings)
        )
    return values[program.out.index]


def sent(outputs: Outputs) -> list[tuple[Direction, int, Messages]]:
    return [output for output in outputs if not isinstance(output, Report)]


class Collected:
    """Payload rows by instance, whatever the order in which they came."""

    def __init__(self, counts: np.ndarray) -> None:
        self.counts = counts
        self.rows: dict[int, Tensor] = {}
        self.empty: set[int] = set()

    def add(self, messages: Messages) -> None:
        offsets = messages.offsets if messages.offsets is not None else np.arange(len(messages) + 1)
        for i, instance in enumerate(messages.states.instance.tolist()):
            assert instance not in self.rows and instance not in self.empty
            if messages.payload is None:
                self.empty.add(instance)
            else:
                self.rows[instance] = messages.payload[offsets[i] : offsets[i + 1]]

    def all(self) -> Tensor:
        assert not self.empty
        return torch.cat([self.rows[i] for i in range(len(self.counts))])


def assert_rows(
    program: Program, xs: Sequence[Tensor], *, counts: np.ndarray | None = None, seed: int = 0, batches: int = 3
) -> Rows:
    """Drive a node in random compositions of batches, port after port in any order; compare with one row at a time."""
    rng = np.random.default_rng(seed)
    node = Rows(program, [f"p{i}" for i in range(len(xs))])
    counts = np.ones(len(xs[0]), dtype=np.int64) if counts is None else counts
    offsets = None if (counts == 1).all() else offsets_of(counts)
    n = len(counts)
    states = States.of(instance=np.arange(n), t=np.arange(n) % 3)
    todo = [
        (port, Messages(x, states, offsets).take(part))
        for port, x in enumerate(xs)
        for part in np.array_split(rng.permutation(n), min(batches, n))
    ]
    out = Collected(counts)
    with torch.no_grad():
        for i in rng.permutation(len(todo)):
            for way, port, messages in sent(node.forward(*todo[i])):
                assert (way, port) == (Direction.FORWARD, 0)
                out.add(messages)
        got = out.all()
        g = torch.from_numpy(rng.standard_normal(tuple(got.shape)))
        back = [Collected(counts) for _ in xs]
        for part in np.array_split(rng.permutation(n), min(batches, n)):
            for way, port, messages in sent(node.backward(0, Messages(g, states, offsets).take(part))):
                assert way is Direction.BACKWARD
                back[port].add(messages)
    leaves = [x.clone().requires_grad_(x.is_floating_point()) for x in xs]
    rows = [one_row(program, [x[i] for x in leaves]) for i in range(len(xs[0]))]
    want = torch.stack(rows) if rows else got
    assert_close({"y": got, "reference": node.reference(*xs)}, {"y": want.detach(), "reference": want.detach()})
    asked = [x for x in leaves if x.requires_grad]
    grads = iter(torch.autograd.grad(want, asked, g, allow_unused=True) if want.requires_grad else [None] * len(asked))
    for collected, leaf in zip(back, leaves, strict=True):
        grad = next(grads) if leaf.requires_grad else None
        if grad is None:
            assert collected.empty == set(range(n))
        else:
            assert_close({"dx": collected.all()}, {"dx": grad})
    assert not any(node.held().values())
    return node


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=F64)


def test_every_operation_of_a_program_can_be_made_ready_and_is_tested() -> None:
    assert set(OPERATIONS) == set(READY) == set(MEANING) == {op for op, *_ in CASES}


A, B, C = Ref(0), Ref(1), Ref(2)
ROW = torch.tensor([0.5, -1.5, 2.0], dtype=F64)
Case = tuple[str, tuple[Operand, ...], tuple[tuple[int, ...], ...], dict[str, Any]]
CASES: list[Case] = [
    *((op, (A, B), (s, s), {}) for op in ("add", "sub", "mul", "div") for s in ((3,), (), (2, 3))),
    *((op, (A, B), s, {}) for op in ("add", "sub", "mul", "div") for s in (((), (3,)), ((3,), ()), ((1,), (3,)))),
    *((op, (A, B), ((3,), (2, 3)), {}) for op in ("add", "sub", "mul", "div")),
    *((op, (A, B), ((2, 1), (1, 3)), {}) for op in ("add", "sub", "mul", "div")),
    *((op, (A, A), ((3,),), {}) for op in ("add", "sub", "mul", "div")),
    *((op, o, ((3,),), {}) for op in ("add", "sub", "mul", "div") for o in ((A, 2), (0.5, A), (A, ROW), (ROW, A))),
    *((op, (A, ROW), ((),), {}) for op in ("add", "sub", "mul", "div")),
    *((op, (ROW, A), ((2, 1),), {}) for op in ("add", "sub", "mul", "div")),
    *((op, (A,), (s,), {}) for op in ("neg", "relu", "tanh", "sigmoid", "exp", "square", "abs") for s in ((3,), ())),
    ("log", (A,), ((3,),), {}),
    ("cat", (A, B), ((3,), (2,)), {}),
    ("cat", (A, B, A), ((3,), (2,)), {}),
    ("cat", (ROW, A, 2, torch.tensor(0.5, dtype=F64)), ((3,),), {}),
    *(("slice", (A,), ((5,),), {"start": a, "stop": b}) for a, b in ((0, 2), (1, 4), (-2, None), (0, None), (2, 2))),
    ("slice", (A,), ((2, 5),), {"start": 1, "stop": 3}),
    *((op, (A,), (s,), {"keepdim": k}) for op in ("sum", "mean") for s in ((3,), (2, 3)) for k in (True, False)),
    *(("reshape", (A,), (a,), {"shape": b}) for a, b in (((6,), (2, 3)), ((2, 3), (6,)), ((), (1,)), ((2, 1), (2,)))),
    ("fill", (A,), ((3,),), {"value": ROW}),
    ("fill", (A,), ((),), {"value": torch.tensor(2.0, dtype=F64)}),
    ("call", (A,), ((3,),), {"function": lambda x: torch.softmax(x, 0)}),
    ("call", (A, B), ((3,), (2, 3)), {"function": lambda x, m: m @ x}),
    ("call", (A, ROW, 2.0), ((3,),), {"function": lambda x, c, k: (x * c).sum() ** k}),
    ("call", (A, A), ((3,),), {"function": torch.outer}),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}-{c[2]}")
def test_each_operation_equals_autograd(case: Case) -> None:
    torch.manual_seed(0)
    op, operands, shapes, given = case
    for seed, rows in enumerate((1, 2, 7, 300)):
        program = Program(len(shapes))
        program.add(op, *operands, **given)
        xs = [random(rows, *shape) for shape in shapes]
        if op in ("log", "div"):
            xs = [x.abs() + 0.1 for x in xs]
        assert_rows(program, xs, seed=seed, batches=1 + seed)


def test_cat_takes_rows_of_more_dimensions() -> None:
    program = Program(2)
    program.add("cat", A, B, ROW)
    node = Rows(program, ("a", "b"))
    x, y = random(4, 2, 3), random(4, 2, 1)
    want = torch.cat((x, y, ROW.expand(4, 2, 3)), -1)
    assert torch.equal(node.reference(x, y), want)


def gate() -> Program:
    """Half of the row decides how much of the other half gets through; plus a third input."""
    program = Program(2)
    decides = program.add("sigmoid", program.add("slice", A, start=0, stop=3))
    through = program.add("mul", decides, program.add("tanh", program.add("slice", A, start=3, stop=6)))
    program.add("add", through, B)
    return program


def test_a_program_keeps_what_its_backward_needs_and_each_value_once() -> None:
    torch.manual_seed(0)
    assert_rows(gate(), [random(9, 6), random(9, 3)], counts=np.array([2, 3, 0, 4]), batches=2)
    node = Rows(gate(), ("a", "b"))
    states = States.of(instance=np.arange(300))
    node.forward(0, Messages(random(300, 6), states))
    node.forward(1, Messages(random(300, 3), states))
    (record,) = node.cache.records()
    assert [tuple(r.shape) for r in record.rows if r is not None] == [(300, 3)] * 2  # the sigmoid and the tanh
    node.forget()
    program = Program(2)
    program.add("cat", program.add("neg", program.add("add", A, B)), program.add("slice", A, start=1))
    node = Rows(program, ("a", "b"))
    node.forward(0, Messages(random(300, 3), states))
    node.forward(1, Messages(random(300, 3), states))
    assert not any(node.held().values())  # widths are all it takes


def test_what_is_not_needed_for_the_result_is_not_computed() -> None:
    def never(x: Tensor) -> Tensor:
        raise AssertionError

    program = Program(2)
    program.add("call", B, function=never)
    program.add("tanh", A)
    node, x = Rows(program, ("a", "b")), random(4, 3)
    assert torch.equal(node.reference(x, x), torch.tanh(x))
    assert node.describe() == "never·tanh"


def test_the_result_may_be_any_value() -> None:
    program = Program(2)
    first = program.add("tanh", A)
    program.add("exp", first)
    program.out = first
    assert_rows(program, [random(4, 3), random(4, 3)])
    program.out = B
    assert_rows(program, [random(4, 3), random(4, 3)])


def test_integers_pass_without_a_gradient() -> None:
    index = torch.tensor([3, 1, 2])
    program = Program(2)
    program.add("mul", A, B)
    assert_rows(program, [index, random(3)])
    program = Program(1)
    program.add("add", A, 1)
    node = Rows(program)
    states = States.of(instance=[0, 1, 2])
    ((_, _, out),) = sent(node.forward(0, Messages(index, states)))
    assert out.payload is not None and out.payload.tolist() == [4, 2, 3]
    ((_, _, back),) = sent(node.backward(0, Messages(None, states)))
    assert back.payload is None and not any(node.held().values())


def test_a_result_that_is_not_differentiable_is_answered_without_a_gradient() -> None:
    program = Program(1)
    program.add("call", A, function=lambda x: x.argmax())
    node = Rows(program)
    states = States.of(instance=[0, 1])
    ((_, _, out),) = sent(node.forward(0, Messages(torch.tensor([[1.0, 2.0], [4.0, 3.0]]), states)))
    assert out.payload is not None and out.payload.tolist() == [1, 0]
    ((_, _, back),) = sent(node.backward(0, Messages(None, states)))
    assert back.payload is None and not any(node.held().values())


def test_an_empty_answer_goes_to_every_port_and_drops_what_was_kept() -> None:
    node = Rows(gate(), ("a", "b"))
    states = States.of(instance=[5, 6])
    for port, width in ((0, 6), (1, 3)):
        node.forward(port, Messages(random(2, width), states))
    assert node.held()["cache"] == 2
    back = sent(node.backward(0, Messages(None, states)))
    assert [(way, port, m.payload, len(m)) for way, port, m in back] == [
        (Direction.BACKWARD, 0, None, 2),
        (Direction.BACKWARD, 1, None, 2),
    ]
    assert not any(node.held().values())
    with pytest.raises(PairingError, match="never forwarded"):
        node.backward(0, Messages(None, states))


def test_inference_keeps_nothing() -> None:
    node = Rows(gate(), ("a", "b"))
    states = States.of(instance=[5, 6])
    node.forward(0, Messages(random(2, 6), states, train=False))
    assert node.waits() == ["2 message(s) of port 'a' wait for port 'b': (instance=5), (instance=6)"]
    ((_, _, out),) = sent(node.forward(1, Messages(random(2, 3), states, train=False)))
    assert not out.train and not any(node.held().values())


def test_what_leaves_has_memory_of_its_own() -> None:
    """A repeated row is one memory seen many times; whoever takes a view of it, or sums into it, would be surprised."""
    program = Program(1)
    program.add("fill", A, value=ROW)
    ((_, _, out),) = sent(Rows(program).forward(0, Messages(random(4, 2), States.of(instance=np.arange(4)))))
    assert out.payload is not None and out.payload.is_contiguous()
    program = Program(1)
    program.add("sum", A)
    node, states = Rows(program), States.of(instance=np.arange(4))
    node.forward(0, Messages(random(4, 2), states))
    ((_, _, back),) = sent(node.backward(0, Messages(random(4), states)))
    assert back.payload is not None and back.payload.is_contiguous()


def test_constants_follow_the_rows_in_type_and_gradients_the_operands() -> None:
    program = Program(2)
    program.add("cat", program.add("mul", A, B), B)
    node = Rows(program, ("a", "b"))
    states = States.of(instance=np.arange(4))
    node.forward(0, Messages(torch.randn(4, 3), states))
    ((_, _, out),) = sent(node.forward(1, Messages(random(4, 3), states)))
    assert out.payload is not None and out.payload.dtype == F64
    back = sent(node.backward(0, out))
    assert [m.payload.dtype for _, _, m in back] == [torch.float32, F64]  # type: ignore[union-attr]


# Programs that a compiler merges


def test_merged_programs_are_equal_to_unmerged_ones() -> None:
    torch.manual_seed(0)
    after = Program(2)
    after.add("mul", after.add("tanh", A), after.add("sub", 1.0, B))
    whole = Program(3)
    inner = whole.inline(gate(), (B, A))
    assert whole.inline(after, (inner, C)) == whole.out == Ref(3 + 6 + 3 - 1)
    a, b, c = random(8, 3), random(8, 6), random(8, 3)
    want = Rows(after, ("a", "b")).reference(Rows(gate(), ("a", "b")).reference(b, a), c)
    assert torch.equal(Rows(whole, ("a", "b", "c")).reference(a, b, c), want)
    assert_rows(whole, [a, b, c])
    assert len(gate().steps) == 6 and len(after.steps) == 3


def test_inlining_a_program_without_steps_gives_its_input() -> None:
    program = Program(2)
    assert program.inline(Program(1), (A,)) == A
    with pytest.raises(ValueError, match=r"has 1 input\(s\), got 2"):
        program.inline(Program(1), (A, B))


# Random programs

SHAPES = [(), (1,), (3,), (2, 3), (2, 1)]
STEPS = ["add", "sub", "mul", "neg", "relu", "tanh", "sigmoid", "square", "cat", "slice", "sum", "mean"]
STEPS += ["reshape", "fill", "call"]


@st.composite
def programs(draw: st.DrawFn) -> tuple[Program, list[tuple[int, ...]]]:
    """A program that fits its inputs, and their row shapes."""
    shapes = draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=3))
    program = Program(len(shapes))
    values = [torch.ones(shape, dtype=F64) for shape in shapes]
    for op in draw(st.lists(st.sampled_from(STEPS), max_size=8)):
        count = OPERATIONS[op][0] or 2
        chosen: list[Operand] = [Ref(draw(st.integers(0, program.size - 1))) for _ in range(count)]
        if count > 1 and draw(st.integers(0, 3)) == 0:
            constant: list[Operand] = [2.0, ROW]
            chosen[draw(st.integers(0, 1))] = draw(st.sampled_from(constant))
        options: dict[str, dict[str, Any]] = {
            "slice": {"start": draw(st.integers(0, 2)), "stop": draw(st.integers(1, 3))},
            "sum": {"keepdim": draw(st.booleans())},
            "mean": {"keepdim": draw(st.booleans())},
            "reshape": {"shape": draw(st.sampled_from([(-1,), (1, -1), (3, -1)]))},
            "fill": {"value": ROW},
            "call": {"function": lambda a, b: (a * b).sin() + b},
        }
        if op == "cat" and any(isinstance(o, Ref) and values[o.index].dim() != 1 for o in chosen):
            continue
        if op in ("slice", "sum", "mean") and values[chosen[0].index].dim() == 0:  # type: ignore[union-attr]
            continue
        given = options.get(op, {})
        try:
            y = MEANING[op](*(values[o.index] if isinstance(o, Ref) else o for o in chosen), **given)
        except RuntimeError:
            continue
        if y.isnan().any():  # the mean of an empty slice
            continue
        program.add(op, *chosen, **given)
        values.append(y)
    return program, shapes


@settings(max_examples=150)
@given(programs(), st.lists(st.integers(0, 3), min_size=1, max_size=6), st.integers(0, 1000), st.integers(1, 4))
def test_random_programs_in_random_batches(
    made: tuple[Program, list[tuple[int, ...]]], counts: list[int], seed: int, batches: int
) -> None:
    program, shapes = made
    rows = sum(counts)
    generator = torch.Generator().manual_seed(seed)
    xs = [torch.randn(rows, *shape, dtype=F64, generator=generator) for shape in shapes]
    if rows:
        assert_rows(program, xs, counts=np.array(counts), seed=seed, batches=batches)


@pytest.mark.parametrize("op", ["tanh", "sum", "call", "cat", "mul"])
def test_messages_without_rows(op: str) -> None:
    program = Program(1)
    given = {"function": torch.softmax, "sum": {}}
    operands: tuple[Operand, ...] = {"cat": (A, ROW), "mul": (A, A), "call": (A, 0)}.get(op, (A,))
    program.add(op, *operands, **({"function": given["function"]} if op == "call" else {}))
    node, states, nothing = Rows(program), States.of(instance=[1, 2]), np.array([0, 0, 0])
    ((_, _, out),) = sent(node.forward(0, Messages(random(0, 3), states, nothing)))
    assert out.payload is not None and out.payload.shape[0] == 0
    ((_, _, back),) = sent(node.backward(0, out))
    assert back.payload is not None and back.payload.shape == (0, 3)


# What is refused


def test_faults_of_a_program_are_named_when_it_is_written() -> None:
    program = Program(1)
    for call, words in (
        (lambda: program.add("softsign", A), "no operation 'softsign'; there are add"),
        (lambda: program.add("add", A), r"'add' takes 2 operand\(s\), got 1"),
        (lambda: program.add("cat"), r"'cat' takes one or more operand\(s\), got 0"),
        (lambda: program.add("tanh", B), "does not exist yet; there are 1 values"),
        (lambda: program.add("add", 1, 2.0), "of constants alone"),
        (lambda: program.add("tanh", A, keepdim=True), "'tanh' has no setting 'keepdim'; it has none"),
        (lambda: program.add("call", A), "'call' needs function="),
        (lambda: Program(0), "at least one input"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    with pytest.raises(TypeError, match="a Ref, a number or a tensor, got str"):
        program.add("add", A, "1")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="does not exist"):
        program.out = Ref(3)
    with pytest.raises(GraphError, match=r"1 input\(s\) needs as many ports"):
        Rows(program, ("a", "b"))


def into_itself(x: Tensor) -> Tensor:
    return x.mul_(2)


@pytest.mark.parametrize(
    ("op", "operands", "given", "words"),
    [
        (
            "add",
            (A, ROW),
            {},
            r"step 1 of its program, 'add', fails on rows of \(4,\): rows of shapes \(4,\) and \(3,\)",
        ),
        ("cat", (A, torch.zeros(2, 2)), {}, "'cat', fails"),
        (
            "call",
            (A,),
            {"function": lambda x: (x, x)},
            "'call', fails on rows of .*must give one tensor a row, got tuple",
        ),
        ("call", (A,), {"function": into_itself}, "'into_itself', fails .*writes into its input"),
        ("call", (A,), {"function": torch.rand_like}, "'rand_like', fails"),
    ],
)
def test_rows_that_do_not_fit_are_named(
    op: str, operands: tuple[Operand, ...], given: dict[str, Any], words: str
) -> None:
    program = Program(1)
    program.add(op, *operands, **given)
    with pytest.raises(PayloadError, match=words):
        Rows(program).forward(0, Messages(torch.zeros(2, 4), States.of(instance=[0, 1])))


def test_rows_must_stay_as_they_were() -> None:
    node, states = Rows(gate(), ("a", "b")), States.of(instance=[0])
    node.forward(0, Messages(random(1, 6), states))
    node.forward(1, Messages(random(1, 3), states))
    later = States.of(instance=[1])
    node.forward(0, Messages(random(1, 6), later))
    with pytest.raises(PayloadError, match=r"got rows of \(6,\) torch.float64 and \(1,\) torch.float64 after rows of"):
        node.forward(1, Messages(random(1, 1), later))
    with pytest.raises(PayloadError, match="without a payload"):
        Rows(Program(1)).forward(0, Messages(None, states))


def test_types_may_change_between_runs_but_not_in_one() -> None:
    program = Program(1)
    program.add("tanh", A)
    node, states = Rows(program), States.of(instance=[0])
    node.forward(0, Messages(random(1, 3), states))
    with pytest.raises(PayloadError, match="float32 after rows of .*float64"):
        node.forward(0, Messages(torch.zeros(1, 3), States.of(instance=[1])))
    node.backward(0, Messages(random(1, 3), states))
    ((_, _, out),) = sent(node.forward(0, Messages(torch.zeros(1, 3), states)))
    assert out.payload is not None and out.payload.dtype == torch.float32


def test_a_drawing_names_a_few_operations() -> None:
    program = Program(1)
    assert Rows(program).describe() == "rows"
    for i, want in enumerate(("tanh", "tanh·tanh", "tanh·tanh·tanh", "tanh·tanh·tanh·tanh", "tanh·tanh·tanh·tanh·…")):
        program.add("tanh", Ref(i))
        assert Rows(program).describe() == want
