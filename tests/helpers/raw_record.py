"""A journal line of any name and any fields, as another version or a bug may write it."""

from __future__ import annotations

from ftslurm.protocol.records import JournalRecord


class RawRecord(JournalRecord):
    """A record of an event that is not in EVENTS."""

    def __init__(self, event: str, /, **fields: object) -> None:
        object.__setattr__(self, "event", event)
        object.__setattr__(self, "_raw", fields)

    @property
    def fields(self) -> dict[str, object]:
        raw: dict[str, object] = self.__dict__["_raw"]
        return raw
