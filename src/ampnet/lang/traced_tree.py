"""fold_tree, in a model that is being compiled: from the leaves up.

    leaf ──> phi ──────────────────────────┬──> every node
              ^                            ├──> cond ── root ──> leave
              └── branch <── beside <── group by parent

With ``children="family"`` the children of a node are not put side by side: they become a family over them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ampnet.lang import moves, ops
from ampnet.lang.ints import Int
from ampnet.lang.line import here
from ampnet.lang.nest import takes
from ampnet.lang.packs import Pack
from ampnet.lang.proto import Proto
from ampnet.lang.scope import Choice
from ampnet.lang.symbols import Moved, Symbol
from ampnet.lang.traced_base import Body, TracedBase
from ampnet.lang.value import Value
from ampnet.nodes import Group, Isu, Reduce


class TracedTree(TracedBase):
    """`ampnet.lang.fold_tree` on symbols."""

    def fold_tree(self, tree: Any, leaf: Body, branch: Body, children: int | str | None) -> tuple[Any, Any]:
        trace = self.trace
        if isinstance(tree, Moved):
            trace.fail(
                f"fold_tree is given a tree that was picked by an index ({tree._over}). Fold the trees of all elements "
                f"and pick the result: each(lambda e: fold_tree(e.tree, leaf, branch)[1], elements)[i]"
            )
        if not isinstance(tree, Symbol) or tree._axis.kind != "tree":
            trace.fail(f"fold_tree folds a Tree, got {type(tree).__name__}")
        axis = tree._axis
        arity = None if isinstance(children, str) else tree._arity(branch, children)
        choice = tree._leaf_or_branch()
        with trace.inside(axis):
            with trace.inside(trace.guard(choice, 1)):
                pack = Pack(trace, leaf(tree._element()))
            values = [self._phi(f"{axis.name}_phi", [lane.value, None], ("leaf", "branch")) for lane in pack.lanes]
            flat = [value if arity is None else self._shaped(value, (-1,)) for value in values]
            rising = [self._rise(tree, value) for value in flat]
            below = [proto.outputs[0] for proto in rising]
            with trace.inside(trace.guard(choice, 0)):
                given = self._family_of_children(tree, below, pack) if arity is None else []
                if arity is not None:
                    beside = [self._children(tree, value, choice, arity) for value in below]
                    given = [
                        pack.unpacked([self._nth(c, i, v.row, arity) for c, v in zip(beside, values, strict=True)])
                        for i in range(arity)
                    ]
                made = branch(*given) if takes(branch, len(given)) else branch(*given, tree._element())
                after = pack.repacked(made, "the branch function of fold_tree")
            for head, value in zip(values, after, strict=True):
                head.proto.inputs[1] = value
            nodes = self._family(axis, pack.unpacked(values))
        tops = [self._top(tree, proto.outputs[1]) for proto in rising]
        return nodes, pack.unpacked([self._shaped(t, v.row.shape) for t, v in zip(tops, values, strict=True)])

    def _shaped(self, value: Value, shape: tuple[int, ...]) -> Value:
        """Reshape a row: children are concatenated as flat rows."""
        same = value.row.dim() == 1 if shape == (-1,) else value.row.shape == shape
        return value if same else ops.anything(self.trace, torch.reshape, (value, tuple(shape)), {})

    def _nth(self, children: Value, i: int, row: torch.Tensor, arity: int) -> Value:
        width = row.numel()
        one = children if arity == 1 else ops.cut(self.trace, children, i * width, (i + 1) * width)
        return self._shaped(one, row.shape)

    def _rise(self, tree: Symbol, value: Value) -> Proto:
        """Returns the choice that separates the root from the other nodes."""
        choice = Choice(tree._lookup("parent") < 0, ("below", "root"), here())
        proto = self.trace.parting(value, choice)
        for output in proto.outputs:
            output.scope = value.scope
        return proto

    def _family_of_children(self, tree: Symbol, below: Sequence[Value], pack: Pack) -> list[Any]:
        """Returns the values of all nodes but the root as a family over the children of the current node."""
        axis = self.trace.axis(f"{tree._axis.name}_child", "elements", tree._lookup("degree"))
        place = Int("index", axis, axes=frozenset({axis}))
        child = Int("lookup", tree._array("child"), tree._base + tree._lookup("first_child") + place)
        ends = (tree._lookup("parent"), tree._lookup("rank"), child)
        return [self._members(tree._axis, tree._axis, axis, ends, below, pack)]

    def _children(self, tree: Symbol, value: Value, choice: Choice, arity: int) -> Value:
        trace, axis = self.trace, tree._axis
        scope = value.scope
        parent, siblings = tree._lookup("parent"), tree._lookup("siblings")
        group = Proto(
            trace.name(f"{axis.name}_group"),
            [value],
            ("out",),
            here(),
            lambda plan: Group(
                moves.replaced(plan, scope, axis, axis, parent),
                moves.number(plan, scope, siblings),
                moves.place(plan, scope, axis),
                key=scope.key,
            ),
            ints=(parent, siblings),
            note="children by parent",
        )
        inner = scope.guarded(trace.guard(choice, 0))
        grouped = trace.emit(group, (inner, value.row))
        row = torch.empty(arity * value.row.shape[-1], dtype=value.row.dtype, device="meta")
        beside = Proto(
            trace.name(f"{axis.name}_beside"), [grouped], ("out",), here(),
            lambda plan: Reduce("beside", key=scope.key, count=arity),
        )  # fmt: skip
        return trace.emit(beside, (inner, row))

    def _top(self, tree: Symbol, value: Value) -> Value:
        axis, root = tree._axis, tree._root()
        outer = value.scope.leaving(axis)

        def build(plan: Any) -> Isu:
            there, back = moves.up_to_root(plan, outer, axis, root)
            return Isu(there, back)

        proto = Proto(
            self.trace.name(f"{axis.name}_root"),
            [value],
            ("out",),
            here(),
            build,
            ints=(root,),
            note="the root",
        )
        return self.trace.emit(proto, (outer, value.row))
