"""What is said of managers that are not let in: to them each time, to the log and the controller once for a store."""

from __future__ import annotations

from collections.abc import Callable

from ftslurm.lighthouse.output import log
from ftslurm.lighthouse.registry import Book, Refused, Taken, Unknown
from ftslurm.protocol import messages

STRANGERS_TOLD = 3  # stores that the controller has not told of; they must not fill the journal


class Refusals:
    """Finds the words, and remembers of which stores it has told.

    Args:
        book: knows the stores of the run's attempts.
        report: takes a message to the controller.
    """

    def __init__(self, book: Book, report: Callable[[messages.Report], None]) -> None:
        self._book = book
        self._report = report
        self._told: set[str] = set()
        self._strangers = 0

    def reason(self, answer: Refused | Unknown | Taken, store: str) -> str:
        """Why the manager with this store is refused; what a person should know is also reported."""
        reason = _words(answer)
        tell = not isinstance(answer, Refused) or answer.tell
        if tell and store not in self._told and self._may_tell(store):
            self._told.add(store)
            log(reason)
            self._report(messages.QuorumRefused(reason, self._book.memory.highest))
        return reason

    def _may_tell(self, store: str) -> bool:
        if store in self._book.memory.stores:
            return True
        self._strangers += 1
        return self._strangers <= STRANGERS_TOLD


def _words(answer: Refused | Unknown | Taken) -> str:
    if isinstance(answer, Refused):
        return answer.reason
    if isinstance(answer, Unknown):
        return (
            f"a manager with the store {answer.store[:40]!a} is refused, no attempt of this run has that store: a "
            "script that gives its Manager a store of its own (store_addr) needs torchft's Lighthouse, "
            "lighthouse=torchft"
        )
    return (
        f"a second manager with the store {answer.store[:40]!a} is refused while the first one "
        f"({answer.holder[:60]!a}) lives: a group has one Manager at a time"
    )
