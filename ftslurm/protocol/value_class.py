"""The base of the many small types of the channel, the journal and the core, which every start imports.

`dataclasses.dataclass(frozen=True)` compiles six methods for each class: for these types together it took a tenth of a
second, before a controller could start anything. Here only `__init__` is compiled. To the type checker the classes are
frozen; nothing enforces it at run time.
"""

import dataclasses
from dataclasses import field
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform as dataclass_transform
else:

    def dataclass_transform(**_):
        return lambda decorated: decorated


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Value:
    """Fields with types, to be treated as frozen. Subclasses are made dataclasses, and compared by value.

    With `kw_only=True` the fields of a class are given by name, and so are those of the classes below it.
    """

    _values = attrgetter("__doc__")  # what is compared: without fields the same for all values of a class
    _kw_only = False

    def __init_subclass__(cls, kw_only: bool = False) -> None:
        cls._kw_only |= kw_only
        made: Any = dataclasses.dataclass(eq=False, repr=False, kw_only=cls._kw_only)(cls)
        compared = [one.name for one in dataclasses.fields(made) if one.compare]
        if compared:
            cls._values = attrgetter(*compared)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._values(self) == self._values(other)

    def __hash__(self) -> int:
        return hash((type(self), self._values(self)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"
