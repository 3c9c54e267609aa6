"""Promise P2, node by node: every payload transform through the message path against autograd, in float64."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ampnet import native
from ampnet.errors import GraphError, PayloadError
from ampnet.message import Messages
from ampnet.nodes import (
    Dropout,
    Embedding,
    Function,
    GruCell,
    LayerNorm,
    Linear,
    LstmCell,
    Module,
    Parameterised,
    Reduce,
    Relu,
    Sigmoid,
    Tanh,
    Transform,
    TreeBranchCell,
    TreeLeafCell,
    TreeLstmBranch,
    TreeLstmLeaf,
    Weight,
)
from ampnet.state import States
from ampnet.testing import assert_close, assert_transform

F64 = torch.float64
NODES: dict[str, tuple[Callable[[torch.dtype], Transform | Parameterised], int]] = {
    "linear": (lambda d: Linear(5, 3, dtype=d), 5),
    "linear without bias": (lambda d: Linear(5, 3, bias=False, dtype=d), 5),
    "linear and relu": (lambda d: Linear(5, 3, dtype=d, activation="relu"), 5),
    "linear and tanh": (lambda d: Linear(5, 3, dtype=d, activation="tanh"), 5),
    "linear and sigmoid": (lambda d: Linear(5, 3, bias=False, dtype=d, activation="sigmoid"), 5),
    "gru": (lambda d: GruCell(nn.GRUCell(3, 4, dtype=d)), 7),
    "gru without bias": (lambda d: GruCell(nn.GRUCell(3, 4, bias=False, dtype=d)), 7),
    "lstm": (lambda d: LstmCell(nn.LSTMCell(3, 4, dtype=d)), 11),
    "lstm without bias": (lambda d: LstmCell(nn.LSTMCell(3, 4, bias=False, dtype=d)), 11),
    "tree leaf": (lambda d: TreeLstmLeaf(TreeLeafCell(3, 4, dtype=d)), 3),
    "tree branch": (lambda d: TreeLstmBranch(TreeBranchCell(4, dtype=d)), 16),
    "layer norm": (lambda d: LayerNorm(nn.LayerNorm(5, dtype=d)), 5),
    "layer norm without parameters": (lambda d: LayerNorm(nn.LayerNorm(5, elementwise_affine=False, dtype=d)), 5),
    "layer norm without bias": (lambda d: LayerNorm(nn.LayerNorm(5, bias=False, dtype=d)), 5),
    "module": (lambda d: Module(nn.Sequential(nn.Linear(5, 4, dtype=d), nn.ELU(), nn.Linear(4, 2, dtype=d))), 5),
    "relu": (lambda d: Relu(), 5),
    "tanh": (lambda d: Tanh(), 5),
    "sigmoid": (lambda d: Sigmoid(), 5),
    "function": (lambda d: Function(lambda x: x.sin() * x[:, :1]), 5),
}


@pytest.mark.parametrize("rows", [1, 2, 200])
@pytest.mark.parametrize("name", NODES)
def test_gradients_equal_autograd(name: str, rows: int) -> None:
    torch.manual_seed(1)
    make, width = NODES[name]
    for seed in range(5):
        assert_transform(make(F64), torch.randn(rows, width, dtype=F64), seed=seed, batches=1 + 2 * seed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", NODES)
def test_other_dtypes_come_close(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    make, width = NODES[name]
    tolerance = 1e-5 if dtype is torch.float32 else 0.08
    assert_transform(make(dtype), torch.randn(8, width, dtype=dtype), tolerance=tolerance)


def test_linear_and_layer_norm_take_rows_of_any_trailing_shape() -> None:
    assert_transform(Linear(5, 3, dtype=F64), torch.randn(6, 2, 4, 5, dtype=F64))
    assert_transform(LayerNorm(nn.LayerNorm((2, 5), dtype=F64)), torch.randn(6, 3, 2, 5, dtype=F64))


def test_linear_with_an_activation_is_the_two_nodes_in_one() -> None:
    torch.manual_seed(0)
    node = Linear(nn.Linear(256, 128), activation="relu")
    assert node.describe() == "Linear 256→128 + relu"
    assert Linear(3, 2).describe() == "Linear 3→2"
    x = torch.randn(4, 256)
    (out,) = node.forward(0, Messages(x, States.of(instance=np.arange(4)), train=False))
    assert isinstance(out, tuple)
    with native.disabled():  # to the bit where torch computes both
        (by_torch,) = node.forward(0, Messages(x, States.of(instance=np.arange(4)), train=False))
    assert isinstance(by_torch, tuple)
    assert torch.equal(by_torch[2].payload, torch.relu(node.module(x)).detach())  # type: ignore[arg-type]
    (plain,) = Linear(node.module).forward(0, Messages(x, States.of(instance=np.arange(4)), train=False))
    assert isinstance(plain, tuple)
    assert out[2].payload is not None
    assert torch.equal(out[2].payload, torch.relu(plain[2].payload))  # type: ignore[arg-type]
    assert torch.allclose(out[2].payload, torch.relu(node.module(x)).detach(), rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="knows the activations relu, tanh, sigmoid; got 'gelu'"):
        Linear(3, 2, activation="gelu")  # type: ignore[arg-type]


def test_embedding_adds_up_repeated_indices_and_spares_the_padding() -> None:
    node = Embedding(nn.Embedding(4, 3, padding_idx=2, dtype=F64))
    assert_transform(node, torch.tensor([0, 1, 1, 2, 3, 0]))
    assert_transform(Embedding(4, 3, dtype=F64), torch.tensor([[0, 1], [1, 1], [3, 2]]))


def test_a_weight_is_a_row_of_its_own_for_every_row_it_is_asked_for() -> None:
    for rows in (1, 2, 200):
        assert_transform(Weight(nn.Parameter(torch.randn(2, 3, dtype=F64))), torch.arange(rows), batches=5)
    parameter = nn.Parameter(torch.tensor([1.0, 2.0]))
    node = Weight(parameter, name="h0")
    assert node.parameters == {"h0": parameter} and node.module.h0 is parameter and node.describe() == "Weight 2"
    states = States.of(instance=[4, 5])
    (out,) = node.forward(0, Messages(None, states, np.array([0, 1, 3])))
    assert isinstance(out, tuple) and out[2].payload is not None
    assert out[2].payload.tolist() == [[1, 2]] * 3 and out[2].offsets is not None
    (back,) = node.backward(0, out[2].with_payload(torch.ones(3, 2)))
    assert isinstance(back, tuple) and back[2].payload is None
    assert node.updater.sums[0].tolist() == [3, 3]
    assert not any(node.held().values())


@pytest.mark.parametrize("rows", [1, 2])
def test_an_update_does_not_reach_a_weight_that_was_sent(rows: int) -> None:
    """One row is the parameter's own memory unless it is copied."""
    parameter = nn.Parameter(torch.zeros(2))
    (out,) = Weight(parameter).forward(0, Messages(torch.zeros(rows, 1), States.of(instance=np.arange(rows))))
    with torch.no_grad():
        parameter.add_(1)
    assert isinstance(out, tuple) and out[2].payload is not None
    assert out[2].payload.tolist() == [[0, 0]] * rows and out[2].payload.is_contiguous()


def test_bfloat16_gradients_add_up_in_float32() -> None:
    """In bfloat16 itself, 1 + 1/512 is 1: a thousand small gradients would be lost."""
    node = Linear(1, 1, bias=False, dtype=torch.bfloat16)
    states = States.of(instance=np.arange(1000))
    node.forward(0, Messages(torch.full((1000, 1), 1 / 512, dtype=torch.bfloat16), states))
    for i in range(1000):
        node.backward(0, Messages(torch.ones(1, 1, dtype=torch.bfloat16), states.take(np.array([i]))))
    assert node.updater.sums[0].dtype == torch.float32
    assert float(node.updater.sums[0]) == pytest.approx(1000 / 512)


@pytest.mark.parametrize("how", ["sum", "mean", "max", "logsumexp"])
@pytest.mark.parametrize("equal", [False, True])
def test_reduce_over_messages_of_unequal_rows(how: str, equal: bool) -> None:
    torch.manual_seed(0)
    counts = np.array([2, 1, 4]) if how in ("max", "logsumexp") else np.array([2, 0, 4])
    counts = np.array([3, 3, 3]) if equal else counts
    offsets = np.concatenate(([0], np.cumsum(counts)))
    x = torch.randn(int(offsets[-1]), 3, dtype=F64)
    g = torch.randn(3, 3, dtype=F64)
    node = Reduce(how)  # type: ignore[arg-type]
    (out,) = node.forward(0, Messages(x, States.of(instance=[4, 5, 6]), offsets))
    leaf = x.clone().requires_grad_()
    pieces = []
    for a, b in itertools.pairwise(offsets):
        part = leaf[a:b]
        empty = torch.zeros(3, dtype=F64)
        reduced = {
            "sum": torch.sum,
            "mean": torch.mean,
            "max": lambda p, _: p.max(0).values,
            "logsumexp": torch.logsumexp,
        }
        pieces.append(reduced[how](part, 0) if b > a else empty)
    want = torch.stack(pieces)
    (want_dx,) = torch.autograd.grad(want, leaf, g)
    assert not isinstance(out, type(None)) and isinstance(out, tuple)
    assert_close({"y": out[2].payload}, {"y": want.detach()})  # type: ignore[dict-item]
    order = np.array([2, 0, 1])
    (back,) = node.backward(0, Messages(g[[2, 0, 1]], States.of(instance=[6, 4, 5])))
    assert isinstance(back, tuple)
    rows = np.concatenate([np.arange(offsets[i], offsets[i + 1]) for i in order])
    assert_close({"dx": back[2].payload}, {"dx": want_dx[rows]})  # type: ignore[dict-item]
    assert back[2].offsets.tolist() == np.concatenate(([0], np.cumsum(counts[order]))).tolist()  # type: ignore[union-attr]
    assert not any(node.held().values())


def test_reduce_max_gives_the_gradient_to_the_first_of_equals_and_refuses_no_rows() -> None:
    node = Reduce("max")
    node.forward(0, Messages(torch.tensor([[1.0], [3.0], [3.0]]), States.of(instance=[0]), np.array([0, 3])))
    (back,) = node.backward(0, Messages(torch.tensor([[5.0]]), States.of(instance=[0])))
    assert isinstance(back, tuple)
    assert back[2].payload.tolist() == [[0.0], [5.0], [0.0]]  # type: ignore[union-attr]
    with pytest.raises(PayloadError, match=r"no maximum of no rows, at \(instance=8\)"):
        node.forward(0, Messages(torch.zeros(1, 1), States.of(instance=[7, 8]), np.array([0, 1, 1])))


def test_reduce_logsumexp_of_large_and_infinite_rows() -> None:
    """exp(1000) is infinite: what counts is the distance to the largest row of the message."""
    x = torch.tensor([[1000.0], [1000.0], [-1000.0], [-torch.inf], [-torch.inf], [3.0]], dtype=F64)
    node, states = Reduce("logsumexp"), States.of(instance=[0, 1, 2])
    (out,) = node.forward(0, Messages(x, states, np.array([0, 2, 5, 6])))
    assert isinstance(out, tuple) and out[2].payload is not None
    want = torch.tensor([[1000 + np.log(2)], [-1000.0], [3.0]], dtype=F64)
    assert_close({"y": out[2].payload}, {"y": want})
    (back,) = node.backward(0, Messages(torch.ones(3, 1, dtype=F64), states))
    assert isinstance(back, tuple) and back[2].payload is not None
    assert back[2].payload.flatten().tolist() == pytest.approx([0.5, 0.5, 1, 0, 0, 1])
    with pytest.raises(PayloadError, match=r"no logsumexp of no rows, at \(instance=1\)"):
        node.forward(0, Messages(x[:2], states, np.array([0, 1, 1, 2])))


@pytest.mark.parametrize("shape", [(4,), (2, 4), ()])
@pytest.mark.parametrize("count", [1, 3])
def test_reduce_beside_is_a_concat_of_the_rows(shape: tuple[int, ...], count: int) -> None:
    node, states, offsets = Reduce("beside", count=count), States.of(instance=[3, 4]), np.array([0, count, 2 * count])
    x = torch.randn(2 * count, *shape, dtype=F64)
    (out,) = node.forward(0, Messages(x, states, offsets))
    assert isinstance(out, tuple) and out[2].offsets is None
    parts = [torch.cat(list(p), -1) if shape else p for p in (x[:count], x[count:])]
    assert torch.equal(out[2].payload, torch.stack(parts))  # type: ignore[arg-type]
    assert not any(node.held().values())
    (back,) = node.backward(0, out[2].take(np.array([1, 0])))
    assert isinstance(back, tuple)
    assert torch.equal(back[2].payload, torch.cat((x[count:], x[:count])))  # type: ignore[arg-type]
    assert back[2].offsets is not None and back[2].offsets.tolist() == [0, count, 2 * count]
    (back,) = node.backward(0, Messages(None, states))
    assert isinstance(back, tuple) and back[2].payload is None


def test_reduce_beside_names_a_message_of_another_number_of_rows() -> None:
    with pytest.raises(PayloadError, match=r"puts 2 rows side by side, got a message of 3 at \(instance=4\)"):
        Reduce("beside", count=2).forward(
            0, Messages(torch.zeros(5, 1), States.of(instance=[3, 4]), np.array([0, 2, 5]))
        )
    with pytest.raises(ValueError, match="needs count="):
        Reduce("beside")
    with pytest.raises(ValueError, match="needs count="):
        Reduce("sum", count=2)
    with pytest.raises(ValueError, match="knows sum, mean, max, logsumexp and beside"):
        Reduce("median")  # type: ignore[arg-type]


def _masks(node: Dropout, states: States, x: Tensor) -> Tensor:
    (out,) = node.forward(0, Messages(x, states))
    assert isinstance(out, tuple) and out[2].payload is not None
    return out[2].payload


def test_dropout_depends_on_the_state_alone() -> None:
    states, x = States.of(instance=np.arange(400), t=3), torch.ones(400, 50)
    whole = _masks(Dropout(0.25, seed=1), states, x)
    node = Dropout(0.25, seed=1)
    order = np.random.default_rng(0).permutation(400)
    pieces = torch.cat([_masks(node, states.take(part), x[: len(part)]) for part in np.array_split(order, 7)])
    assert torch.equal(pieces, whole[torch.from_numpy(order)])
    assert (whole == 0).float().mean().item() == pytest.approx(0.25, abs=0.01)
    assert whole.max().item() == pytest.approx(1 / 0.75)
    assert not torch.equal(whole, _masks(Dropout(0.25, seed=2), states, x))
    (back,) = node.backward(0, Messages(x, states))
    assert isinstance(back, tuple)
    # A node may answer in another order than it was asked: states say which row is whose.
    assert torch.equal(back[2].payload, whole[torch.from_numpy(back[2].states.instance.copy())])  # type: ignore[arg-type]


def test_dropout_does_nothing_in_inference_and_keeps_nothing() -> None:
    node = Dropout(0.5)
    (out,) = node.forward(0, Messages(torch.ones(3, 2), States.of(instance=[0, 1, 2]), train=False))
    assert isinstance(out, tuple)
    assert torch.equal(out[2].payload, torch.ones(3, 2))  # type: ignore[arg-type]
    assert not any(node.held().values())


def test_rows_of_a_message_get_masks_of_their_own() -> None:
    node = Dropout(0.5)
    (out,) = node.forward(0, Messages(torch.ones(40, 10), States.of(instance=[0]), np.array([0, 40])))
    assert isinstance(out, tuple)
    assert len({tuple(r) for r in out[2].payload.tolist()}) > 30  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (nn.BatchNorm1d(3), "normalises by the other rows"),
        (nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.1)), "drops numbers at random"),
    ],
)
def test_modules_that_are_not_row_wise_are_refused(module: nn.Module, reason: str) -> None:
    with pytest.raises(GraphError, match=f"{reason}.*Remedy"):
        Module(module)
    Module(module.eval())


def test_a_function_that_mixes_rows_is_found_out() -> None:
    node = Function(lambda x: x - x.mean(0))
    with pytest.raises(PayloadError, match="not row-wise"):
        node.forward(0, Messages(torch.randn(4, 3), States.of(instance=np.arange(4))))
    with pytest.raises(PayloadError, match="one output row per input row: 4 rows in"):
        Function(lambda x: x.sum()).forward(0, Messages(torch.randn(4, 3), States.of(instance=np.arange(4))))


@pytest.mark.parametrize(
    ("node", "payload", "words"),
    [
        (Linear(3, 2), torch.zeros(2, 4), "width 3, got a payload of shape"),
        (Linear(3, 2), torch.zeros(2, 3, dtype=F64), "float32 parameters, got a payload of torch.float64"),
        (Embedding(3, 2), torch.zeros(2), "int64 indices"),
        (Embedding(3, 2), torch.tensor([0, 3]), "index 3 is out of range.*3 rows, 0 to 2"),
        (GruCell(nn.GRUCell(2, 2)), torch.zeros(2, 3), "width 4"),
        (LayerNorm(3), torch.zeros(2, 4), r"end in \(3,\)"),
        (Relu(), None, "without a payload"),
    ],
)
def test_wrong_payloads_are_named(node: Transform | Parameterised, payload: Tensor | None, words: str) -> None:
    with pytest.raises(PayloadError, match=words):
        node.forward(0, Messages(payload, States.of(instance=[0, 1])))


def test_closed_forms_are_those_of_torch() -> None:
    """The cells are not merely right by their own reference: it *is* torch's cell."""
    torch.manual_seed(0)
    gru, lstm = nn.GRUCell(3, 4), nn.LSTMCell(3, 4)
    x, h, c = torch.randn(6, 3), torch.randn(6, 4), torch.randn(6, 4)
    states = States.of(instance=np.arange(6))
    (out,) = GruCell(gru).forward(0, Messages(torch.cat((x, h), 1), states, train=False))
    assert isinstance(out, tuple)
    torch.testing.assert_close(out[2].payload, gru(x, h).detach())
    (out,) = LstmCell(lstm).forward(0, Messages(torch.cat((x, h, c), 1), states, train=False))
    assert isinstance(out, tuple)
    torch.testing.assert_close(out[2].payload, torch.cat(lstm(x, (h, c)), 1).detach())
