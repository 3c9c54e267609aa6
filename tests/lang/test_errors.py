"""Mistakes in models: each is refused before anything runs, at the line that makes it, with what to do instead.

Every body below ends with the mistake, on the line marked ``# wrong``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ampnet.errors import DataError, ModelError
from ampnet.lang import (
    Edges,
    Model,
    Seq,
    Tree,
    choose,
    compile,
    each,
    fold,
    fold_tree,
    loss,
    messages,
    reduce,
    repeat,
    scan,
)

WIDTH = 3
Body = Callable[..., Any]


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


class Mistaken(Model):
    def __init__(self, body: Body) -> None:
        super().__init__()
        self.body = body
        self.a = nn.Linear(WIDTH, WIDTH)
        self.two = nn.Linear(2 * WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.cell = nn.GRUCell(WIDTH, WIDTH)
        self.noisy = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH))
        self.options = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.scale = nn.Parameter(torch.randn(WIDTH))
        self.table = nn.Parameter(torch.randn(WIDTH, WIDTH))
        self.hidden_in_a_list = [nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.randn(WIDTH))]

    def forward(self, x: Tensor, seq: Seq, edges: Edges, tree: Tree, n: int, y: Tensor) -> None:
        out = self.body(self, x, seq, edges, tree, n, y)
        loss(x if out is None else out, y, "squared_error")


def example() -> tuple[Any, ...]:
    seq = Seq(x=torch.randn(3, WIDTH), k=[0, 1, 1], word=torch.tensor([1, 2, 0]))
    edges = Edges(seq, [0, 1], [1, 2], x=torch.randn(2, WIDTH), k=[0, 1])
    tree = Tree([2, 2, -1], leaves={"word": torch.tensor([0, 1])}, x=torch.randn(3, WIDTH), k=[0, 1, 0])
    return torch.randn(WIDTH), seq, edges, tree, 2, torch.randn(WIDTH)


CASES: list[tuple[str, Body]] = []


def case(*wanted: str) -> Callable[[Body], Body]:
    """The error's message has these words."""

    def register(body: Body) -> Body:
        CASES.append((" ... ".join(wanted), body))
        return body

    return register


# -- scopes


@case("used outside of its scope", "each element of 'seq'")
def a_value_used_outside_of_each(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    kept: list[Any] = []
    each(lambda t: kept.append(m.a(t.x)), seq)
    return x + kept[0]  # wrong


@case("used outside of its scope", "round")
def a_value_used_outside_of_a_loop(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    kept: list[Any] = []

    def step(h: Any) -> Any:
        kept.append(m.a(h))
        return kept[0]

    repeat(step, x, times=2)
    return torch.tanh(kept[0])  # wrong


@case("one way of a choice", "option0")
def a_value_used_outside_of_an_option(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    kept: list[Any] = []

    def option(h: Any) -> Any:
        kept.append(m.a(h))
        return h

    choose(n, [option, torch.tanh, torch.relu], x)
    return m.a(kept[0])  # wrong


@case("each element of 'tree'")
def a_value_of_one_space_inside_of_another(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    kept: list[Any] = []
    each(lambda node: kept.append(node.x), tree)

    def token(t: Any) -> Any:
        return t.x * kept[0]  # wrong

    return reduce(each(token, seq))


@case("'seq'", "'tree'", "nothing says which belongs to which")
def each_over_two_spaces(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    return reduce(each(lambda a, b: a + b, seq.x, tree.x))  # wrong


@case("'seq'", "'edges'", "messages(...) along edges")
def families_of_atoms_and_bonds(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    h = each(m.a, seq.x)
    return reduce(each(lambda h, b: h * b, h, edges.x))  # wrong


@case("outside of its scope", "each(function, family)")
def a_family_added_to_a_value(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    return x + each(m.a, seq.x)  # wrong


@case("outside of its scope", "'seq'")
def a_value_added_to_a_family(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    return seq.x * x  # wrong


@case("outside of its scope", "'seq'")
def a_torch_function_of_a_family(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    return torch.tanh(seq.x)  # wrong


@case("outside of its scope")
def torch_cat_of_families(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    return torch.cat([x, seq.x], -1)  # wrong


@case("outside of its scope")
def a_module_of_a_family(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    return m.a(seq.x)  # wrong


@case("outside of its scope")
def a_loss_of_a_family(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    loss(seq.x, y, "squared_error")  # wrong


@case("gone through again")
def each_over_a_space_inside_of_itself(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    def token(t: Any) -> Any:
        return reduce(each(lambda u: u * t, seq.x))  # wrong

    return reduce(each(token, seq.x))


@case("each of 'tree'")
def messages_from_other_nodes(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    return reduce(messages(lambda v: v, edges, tree.x))  # wrong


@case("messages run along Edges")
def messages_along_a_sequence(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    return reduce(messages(lambda v: v, seq, seq.x))  # wrong


@case("folds a Tree")
def fold_tree_of_a_sequence(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    return fold_tree(seq, lambda t: t.x, lambda a, b: a + b)[1]  # wrong


@case("wanted here", "Value")
def each_of_a_tensor(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    return each(m.a, x)  # wrong


@case("nothing to go through")
def each_of_nothing(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    return each(lambda: x)  # wrong


@case("integer for each element of 'seq'", "outside of its scope")
def an_integer_used_outside_of_its_scope(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    kept: list[Any] = []
    each(lambda t: kept.append(t.k), seq)
    return repeat(m.a, x, times=kept[0])  # wrong


# -- Python's control flow


@case("'if'", "torch.where")
def an_if_on_a_tensor(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    if x.sum() > 0:  # wrong
        return x
    return None


@case("'if'", "choose(...)")
def an_if_on_an_integer(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    return x if n > 1 else -x  # wrong


@case("'and'", "& and |")
def an_and_of_integers(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    return choose(n > 0 and n < 2, m.options, x)  # wrong


@case("'while'")
def a_while_on_a_tensor(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    while (x > 0).any():  # wrong
        x = x - 1


@case("'while'", "repeat(..., while_=...)")
def a_while_on_an_integer(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    while n > 0:  # wrong
        n = n - 1


@case("range(...)", "times=")
def a_for_over_an_integer(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    for _ in range(n):  # wrong
        x = m.a(x)


@case("'for'")
def a_for_over_a_tensor(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    for part in x:  # wrong
        x = x + part


@case("'for'")
def a_for_over_a_family(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    for token in seq:  # wrong
        x = x + token.x


@case("'if'")
def an_if_on_a_family(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    if each(m.a, seq.x):  # wrong
        return x
    return None


@case("len(...)", ".length")
def len_of_a_sequence(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    return x * len(seq)  # wrong


@case("int(...)")
def int_of_a_tensor(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    return x * int(x.sum())  # wrong


@case("float(...)")
def float_of_a_tensor(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    return x * float(x.sum())  # wrong


@case("int(...)")
def int_of_an_integer(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    return x * int(n)  # wrong


@case("'item'", "not known while the model is compiled")
def item_of_a_tensor(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    return x * x.sum().item()  # wrong


@case("'item'")
def item_of_a_parameter(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    return x * m.scale.sum().item()  # wrong


@case("'if'")
def an_if_on_a_parameter(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    if m.scale.norm() > 1:  # wrong
        return x
    return None


@case("draws random numbers")
def random_numbers_of_the_compilation(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    return x + torch.randn(WIDTH)  # wrong


@case("'numpy'")
def numpy_of_a_tensor(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    return x.numpy()  # wrong


@case("indexed by a mask", "torch.where")
def a_tensor_indexed_by_a_mask(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    return x[x > 0]  # wrong


@case("index")
def a_tensor_indexed_by_an_integer(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    return x * x[n]  # wrong


@case("integer of the instance", "as a tensor as well")
def an_integer_in_arithmetic_with_a_tensor(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    return x * n  # wrong


@case("integer of the instance")
def a_tensor_in_arithmetic_with_an_integer(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    return n * x  # wrong


@case("integer of the instance meets a float")
def an_integer_in_arithmetic_with_a_float(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    return choose(n * 0.5, m.options, x)  # wrong


@case("'~'", "opposite comparison")
def a_tilde_for_not(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    return choose(~(n > 1), m.options, x)  # wrong


# -- in place


@case("+=", "in place")
def an_addition_in_place(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    x += y  # wrong


@case("add_", "in place")
def a_method_in_place(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    x.add_(y)  # wrong


@case("in place", "torch.where")
def an_assignment_to_a_part(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    x[0] = 1  # wrong


@case("in place")
def an_activation_in_place(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    return nn.functional.relu(x, inplace=True)  # wrong


@case("in place")
def an_activation_module_in_place(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    return nn.ReLU(inplace=True)(x)  # wrong


@case("in place")
def a_result_written_into_another(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    torch.add(x, y, out=x)  # wrong


@case("in place")
def a_value_written_into_a_constant(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    buffer = torch.zeros(WIDTH)
    buffer += x  # wrong


@case("in place")
def a_value_assigned_to_a_part_of_a_constant(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    buffer = torch.zeros(2, WIDTH)
    buffer[0] = x  # wrong


@case("in place")
def a_parameter_changed_in_place(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    m.scale.mul_(2)  # wrong


# -- shapes and dtypes


@case("add", "(3,)", "(4,)")
def rows_of_different_width(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    return x + torch.cat((x, x[:1]), -1)  # wrong


@case("matmul", "(3,)")
def a_product_that_does_not_fit(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    return torch.zeros(2, 2) @ x  # wrong


@case("Linear 'two'", "(3,)")
def a_module_of_another_width(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    return m.two(x)  # wrong


@case("GRUCell 'cell'")
def a_cell_of_another_width(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    return m.cell(x, torch.zeros(5))  # wrong


@case("function of a loop", "(3,)", "(6,)")
def a_loop_that_changes_the_shape(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    return repeat(lambda h: torch.cat((h, x), -1), x, times=2)  # wrong


@case("function of a loop", "float32", "float64")
def a_loop_that_changes_the_dtype(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    return fold(lambda h, t: h.double(), seq, x)  # wrong


@case("function of a loop", "nested alike")
def a_loop_that_changes_the_nesting(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    return repeat(lambda h: (h, h), x, times=2)  # wrong


@case("returns None", "return")
def a_loop_that_gives_nothing(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    return repeat(lambda h: None, x, times=2)  # wrong


@case("same scope")
def a_loop_that_gives_a_family_for_a_value(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    return repeat(lambda h: each(m.a, seq.x), x, times=2)  # wrong


@case("a tensor in place of an integer")
def a_loop_that_gives_a_tensor_for_an_integer(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    return repeat(lambda s: (s[0], s[0]), (x, n), times=2)[0]  # wrong


@case("the options of a choice", "(3,)", "(1,)")
def options_of_different_shapes(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    return choose(n, [m.a, lambda h: h[:1]], x)  # wrong


@case("others None")
def options_some_of_which_give_nothing(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    return choose(n, [lambda h: loss(h, y, "squared_error"), m.a], x)  # wrong


@case("the branch function", "(3,)", "(6,)")
def a_tree_that_changes_the_shape(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    return fold_tree(tree, lambda node: node.x, lambda a, b: torch.cat((a, b), -1))[1]  # wrong


@case("cross_entropy", "int64")
def a_class_that_is_no_number(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    loss(x, y)  # wrong


@case("squared_error", "(1,)", "(3,)")
def a_label_of_another_shape(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    loss(x[:1], y, "squared_error")  # wrong


@case("absolute_error", "(1,)", "(3,)")
def a_label_of_another_shape_again(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    loss(x[:1], y, "absolute_error")  # wrong


# -- gradients that would be lost


@case("the label of a loss depends on parameters", "label.detach()")
def a_label_that_is_trained(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    loss(y, torch.tanh(m.a(x)), "squared_error")  # wrong


@case("the label of a loss depends on parameters")
def a_label_that_is_trained_in_a_loop(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    label = repeat(lambda h: h * m.scale, y, times=n)
    loss(m.a(x), label, "squared_error")  # wrong


@case("torch.no_grad()", "value.detach()")
def a_part_without_gradients(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    with torch.no_grad():
        h = m.a(x)  # wrong
    return m.a(h)


# -- parameters and modules


@case("no submodule of the model", "nothing would train it")
def a_module_that_is_not_registered(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    return m.hidden_in_a_list[0](x)  # wrong


@case("does not belong to the model", "register it")
def a_parameter_that_is_not_registered(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    return x * m.hidden_in_a_list[1]  # wrong


@case("a parameter of shape (3, 3)", "F.linear(x, parameter)")
def a_matrix_used_by_itself(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    return x @ m.table  # wrong


@case("BatchNorm1d in training mode", "Remedy: .eval()")
def batch_normalisation(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    return m.norm(x)  # wrong


@case("BatchNorm1d in training mode", "nn.LayerNorm")
def batch_normalisation_deep_inside(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    return m.noisy(x)  # wrong


@case("dropout", "nn.Dropout submodule")
def dropout_as_a_function(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    return nn.functional.dropout(x, 0.5)  # wrong


@case("random")
def random_numbers_like_a_value(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    return x + torch.randn_like(x)  # wrong


@case("random")
def random_numbers_drawn_by_a_value(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    return torch.bernoulli(torch.sigmoid(x))  # wrong


# -- integers


@case("is a tensor", "integers of the instance")
def a_tensor_that_chooses(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    return reduce(each(lambda t: choose(t.word, m.options, t.x), seq))  # wrong


@case("times is a tensor")
def a_tensor_that_counts(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    return repeat(m.a, x, times=torch.tensor(3))  # wrong


@case("the condition of a loop (while_) is a tensor")
def a_condition_on_a_tensor(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    return repeat(m.a, x, while_=lambda h: h.sum() > 0)  # wrong


@case("whole number", "float")
def a_number_of_rounds_that_is_not_whole(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    return repeat(m.a, x, times=2.5)  # type: ignore[arg-type]  # wrong


@case("a choice of 2 among 2 options")
def a_choice_that_there_is_not(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    return choose(2, m.options, x)  # wrong


@case("at least one option")
def a_choice_of_nothing(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    return choose(n, [], x)  # wrong


@case("either times=... or while_=...")
def a_loop_without_an_end(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    return repeat(m.a, x)  # wrong


@case("an integer of the instance is handed on")
def an_integer_as_the_result_of_an_option(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    return repeat(m.a, x, times=choose(n, [lambda: n, lambda: n + 1]))  # wrong


@case("one of sum, mean, max, logsumexp", "'median'")
def a_reduction_that_there_is_not(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    return reduce(seq.x, "median")  # type: ignore[arg-type]  # wrong


@case("a loss is one of", "'hinge'")
def a_loss_that_there_is_not(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    loss(x, y, "hinge")  # type: ignore[arg-type]  # wrong


@case("reduce works on tensors")
def a_reduction_of_integers(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    return repeat(m.a, x, times=reduce(seq.k, "max"))  # wrong


@case("no column 'colour' in 'seq'", "x, k, word")
def a_column_that_there_is_not(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    return reduce(seq.colour)  # wrong


@case("no column 'colour' in 'seq'")
def a_column_that_an_element_has_not(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    return reduce(each(lambda t: t.colour, seq))  # wrong


@case("word", "one way of a choice")
def a_word_where_there_is_a_branch(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
    return reduce(each(lambda node: node.x * node.word, tree))  # wrong


@pytest.mark.parametrize(("wanted", "body"), CASES, ids=[body.__name__ for _, body in CASES])
def test_a_mistake_is_refused_at_its_line(wanted: str, body: Body) -> None:
    with pytest.raises((ModelError, AttributeError)) as caught:
        compile(Mistaken(body), *example())
    for words in wanted.split(" ... "):
        assert words in str(caught.value)
    if isinstance(caught.value, ModelError):
        assert caught.value.line is not None
        assert caught.value.line.text.endswith("# wrong")
        assert f"{__file__}:{caught.value.line.number}\n" in str(caught.value)


# -- what is wrong as a whole


def test_a_model_without_a_loss_is_refused() -> None:
    class Silent(Model):
        def forward(self, x: Tensor) -> Tensor:
            return x

    with pytest.raises(ModelError, match="the forward of Silent calls no loss"):
        compile(Silent(), torch.zeros(3))
    with pytest.raises(ModelError, match="the forward of Silent calls no loss"):
        Silent().loss(torch.zeros(3))


@pytest.mark.parametrize("name", ["judge", "loss", "zeros"])
def test_a_method_of_the_base_class_cannot_be_replaced(name: str) -> None:
    """Once a model's own ``judge`` silently took the place of the one that ``model.loss`` calls."""
    with pytest.raises(ModelError, match=f"Mine defines '{name}', which is a method of ampnet.Model.*use another name"):
        type("Mine", (Model,), {name: lambda self, h: h})
    mixin = type("Mixin", (), {name: lambda self, h: h})
    with pytest.raises(ModelError, match=name):
        type("Mixed", (mixin, Model), {})

    class Assigned(Model):
        def __init__(self) -> None:
            super().__init__()
            setattr(self, name, nn.MSELoss())

    with pytest.raises(ModelError, match=f"Assigned defines '{name}'"):
        Assigned()


def test_a_loss_by_the_name_that_torch_has_for_it() -> None:
    class Renamed(Model):
        def forward(self, x: Tensor) -> None:
            loss(x, x, "mse")  # type: ignore[arg-type]

    with pytest.raises(ModelError, match="got 'mse'; did you mean 'squared_error'"):
        compile(Renamed(), torch.zeros(3))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ((None, 1), "argument 'x' of the example is None"),
        (("word", 1), "argument 'x' of the example is a str"),
        ((torch.zeros(3), 1.5), "argument 'n' of the example is a float"),
        (([1, 2], 1), "argument 'x' of the example is a list"),
        ((torch.zeros(3),), "the example does not fit: Plain needs 'n'"),
        ((torch.zeros(3), 1, 2), r"the example does not fit: Plain takes 2 argument\(s\), got 3"),
    ],
)
def test_an_example_of_the_wrong_kind_is_refused(wrong: tuple[Any, ...], words: str) -> None:
    class Plain(Model):
        def forward(self, x: Tensor, n: int) -> None:
            loss(x, x, "squared_error")

    with pytest.raises(ModelError, match=words):
        compile(Plain(), *wrong)


def test_edges_whose_nodes_are_no_argument_are_refused() -> None:
    class Bonds(Model):
        def forward(self, edges: Edges, nodes: Seq) -> None:
            loss(reduce(messages(lambda v: v, edges, nodes.x)), torch.zeros(2), "squared_error")

    nodes, others = Seq(x=torch.zeros(2, 2)), Seq(x=torch.zeros(2, 2))
    for arguments in ((Edges(others, [0], [1]), nodes), (Edges(nodes, [0], [1]), nodes)):
        with pytest.raises(
            ModelError, match="nodes of the edges 'edges' must be an argument of forward as well, before"
        ):
            compile(Bonds(), *arguments)


def test_a_value_that_was_stored_on_the_model_is_refused_at_the_next_compilation() -> None:
    class Keeps(Model):
        kept: Any = None

        def forward(self, x: Tensor) -> None:
            if self.kept is not None:
                x = x + self.kept  # wrong
            self.kept = torch.tanh(x)
            loss(x, x, "squared_error")

    model = Keeps()
    compile(model, torch.zeros(3))
    with pytest.raises(ModelError, match="another compilation") as caught:
        compile(model, torch.zeros(3))
    assert caught.value.line is not None
    assert caught.value.line.text.endswith("# wrong")
    with pytest.raises(ModelError, match="stored on the model"):
        model.loss(torch.zeros(3))


def test_compiling_that_fails_leaves_modules_as_they_were() -> None:
    before = nn.Module.__call__
    with pytest.raises(ModelError):
        compile(Mistaken(CASES[0][1]), *example())
    assert nn.Module.__call__ is before
    layer = nn.Linear(3, 3)
    assert isinstance(1 - layer.weight, Tensor)


# -- what makes no sense is refused eagerly, too


@pytest.mark.parametrize(
    "body",
    [
        each_over_two_spaces, families_of_atoms_and_bonds, a_family_added_to_a_value, a_value_added_to_a_family,
        a_torch_function_of_a_family, torch_cat_of_families, a_module_of_a_family, a_loss_of_a_family,
        messages_from_other_nodes, messages_along_a_sequence, fold_tree_of_a_sequence, each_of_a_tensor,
        each_of_nothing, an_if_on_a_family, a_choice_of_nothing, a_loop_without_an_end,
        a_reduction_that_there_is_not, a_loss_that_there_is_not, a_for_over_a_family,
    ],
)  # fmt: skip
def test_eagerly_what_makes_no_sense_is_refused_at_its_line_too(body: Body) -> None:
    with pytest.raises(ModelError) as caught:
        Mistaken(body).loss(*example())
    assert caught.value.line is not None
    assert caught.value.line.text.endswith("# wrong")


def test_eagerly_a_choice_out_of_range_names_the_number() -> None:
    with pytest.raises(DataError, match="a choice of 2 among 2 options"):
        Mistaken(a_choice_that_there_is_not).loss(*example())


def test_a_missing_label_is_no_loss_eagerly_but_an_error_in_training() -> None:
    class Labelled(Model):
        def forward(self, x: Tensor, label: Tensor | None) -> Any:
            return loss(x, label)

    assert Labelled()(torch.zeros(3), None) is None
    with pytest.raises(DataError, match="no label for the loss 'loss'"):
        Labelled().loss(torch.zeros(3), None)


def test_scan_gives_a_family_that_is_refused_as_one_value() -> None:
    def body(m: Any, x: Any, seq: Any, edges: Any, tree: Any, n: Any, y: Any) -> Any:
        states, _ = scan(lambda h, t: h + t.x, seq, x)
        return states + x  # wrong

    with pytest.raises(ModelError, match="outside of its scope") as caught:
        compile(Mistaken(body), *example())
    assert caught.value.line is not None
    assert caught.value.line.text.endswith("# wrong")
