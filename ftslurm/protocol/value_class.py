"""A `dataclass` that is made faster, for the many small types of the journal and the core, which every start imports.

`dataclasses.dataclass(frozen=True)` compiles six methods for each class: for these types together it took a tenth of a
second, before a controller could start anything. Here only `__init__` is compiled. To the type checker the classes are
frozen; nothing enforces it at run time, as for the messages of ftslurm/protocol/messages.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    import dataclasses
    from collections.abc import Callable
    from operator import attrgetter
    from reprlib import recursive_repr

    def dataclass(*, frozen: bool, kw_only: bool = False) -> Callable[[type], type]:  # noqa: ARG001 for the type checker
        """Return a decorator as `dataclasses.dataclass` does, for frozen classes that are compared by value."""

        def make(cls: type) -> type:
            own = {
                name for name, method in vars(cls).items() if method is not None
            }  # __hash__ is None beside an __eq__
            made = dataclasses.dataclass(cls, kw_only=kw_only, repr=False, eq=False)
            for name, method in _methods(dataclasses.fields(made)).items():
                if name not in own:
                    setattr(made, name, method)
            return made

        return make

    def _methods(fields: tuple[dataclasses.Field[Any], ...]) -> dict[str, Callable[..., Any]]:
        """Return what a class with these fields needs to be shown, compared and hashed as a frozen dataclass is."""
        compared = [field.name for field in fields if field.compare]
        values = attrgetter(*compared) if compared else lambda _: ()

        @recursive_repr()
        def shown(self: Any) -> str:
            words = (f"{field.name}={getattr(self, field.name)!r}" for field in fields if field.repr)
            return f"{type(self).__qualname__}({', '.join(words)})"

        def is_equal(self: Any, other: object) -> bool:
            return values(self) == values(other) if type(other) is type(self) else NotImplemented

        def hashed(self: Any) -> int:
            return hash(values(self))

        return {"__repr__": shown, "__eq__": is_equal, "__hash__": hashed}
