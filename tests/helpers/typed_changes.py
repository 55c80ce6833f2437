"""A plugin of mypy: the fields of `turn.attempt(unit, recalled=1)` are checked as if they were those of Attempt."""

from __future__ import annotations

from collections.abc import Callable

from mypy.nodes import ARG_NAMED_OPT, TypeInfo, Var
from mypy.plugin import MethodSigContext, Plugin
from mypy.types import FunctionLike

TURN = "ftslurm.core.state.turn.Turn."
CHANGED = {
    "change": "ftslurm.core.state.model.Unit",
    "attempt": "ftslurm.core.state.model.Attempt",
    "mark": "ftslurm.core.state.model.Marks",
    "set": "ftslurm.core.state.run_state.RunState",
    "set_lineage": "ftslurm.core.state.model.Lineage",
    "set_nodes": "ftslurm.core.state.model.Nodes",
    "node": "ftslurm.core.state.model.Node",
    "set_job_pool": "ftslurm.core.state.model.JobPool",
}


class TypedChanges(Plugin):
    """Gives the methods of Turn that change a value the fields of that value as named arguments."""

    def get_method_signature_hook(self, fullname: str) -> Callable[[MethodSigContext], FunctionLike] | None:
        changed = CHANGED.get(fullname.removeprefix(TURN)) if fullname.startswith(TURN) else None
        return None if changed is None else lambda context: _signature(context, changed)


def _signature(context: MethodSigContext, changed: str) -> FunctionLike:
    before = context.default_signature
    module, name = changed.rsplit(".", 1)
    value = context.api.modules[module].names[name].node  # type: ignore[attr-defined]
    assert isinstance(value, TypeInfo)
    nodes = value.names.items()
    fields = {name: one.node.type for name, one in nodes if isinstance(one.node, Var) and one.node.type is not None}
    keep = len(before.arg_types) - 1  # its **fields
    return before.copy_modified(
        arg_types=[*before.arg_types[:keep], *fields.values()],
        arg_kinds=[*before.arg_kinds[:keep], *[ARG_NAMED_OPT] * len(fields)],
        arg_names=[*before.arg_names[:keep], *fields],
    )


def plugin(version: str) -> type[Plugin]:
    """Return the plugin, as mypy asks for it."""
    return TypedChanges
