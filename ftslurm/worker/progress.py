"""Reports the progress of the training: steps, quorums, participants. Needs no change to the script.

RunManager tells the observer what it does (run_manager.py), and the observer reads the Manager's attributes: it cannot
stop or change a step. It does not use the answers of the ManagerClient, because the Manager computes the number of
participants from them by its own rules (asynchronous quorum, fixed world size).

The observer also writes each stage of a step to the worker's Position, where its guard reads it. With an asynchronous
quorum the script computes while the quorum is sought; an allreduce that is called before the quorum waits for it, and
counts as a collective from then on.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from ftslurm.protocol import messages
from ftslurm.protocol.position import Position
from ftslurm.protocol.stages import Stage
from ftslurm.worker.onlooker import Onlooker, quietly
from ftslurm.worker.pace import Pace


@dataclass
class _Seen:
    """The observed state of one Manager. A process may have several."""

    step: int = 0
    quorum_id: int = -1
    participants: int = 0
    reported: tuple[int, int] | None = None  # quorum id and participants of the last report
    committed_at: float | None = None
    pace: Pace = field(default_factory=Pace)


class Observer(Onlooker):
    """Calls `report` at the first commit, when the quorum changes, at the first of several aborted steps, and otherwise
    at most once in `every_s` seconds.

    step          the Manager's current step: the committed step plus one
    quorum_id     changes whenever the process groups are rebuilt
    participants  groups whose gradients count, without those that are healing
    committed, aborted    counts since this process started
    gap_s         the longest time between two successive commits since the last report; None: there were no two
    own_s, step_s as Pace.medians

    `report` is called in the thread of the event, by one thread at a time. It may be replaced at any time, as may
    `on_quorum`, which is called once, at the first quorum.
    """

    def __init__(
        self,
        report: Callable[[messages.Progress], None],
        position: Position,
        clock: Callable[[], float] = time.monotonic,
        every_s: float = 1.0,
    ) -> None:
        super().__init__()
        self.report = report
        self.on_quorum: Callable[[messages.FirstQuorum], None] | None = None
        self._position = position
        self._reducing = False  # an allreduce was called before there was a quorum
        self._clock = clock
        self._every_s = every_s
        self._managers: WeakKeyDictionary[Any, _Seen] = WeakKeyDictionary()
        self._committed = 0
        self._aborted = 0
        self._aborting = False  # the last step was not committed
        self._gap_s: float | None = None
        self._reported_at = float("-inf")
        self._unreported: _Seen | None = None  # the Manager whose last commit is not reported yet

    @quietly
    def flush(self) -> None:
        """Report the latest commit if it is not reported yet. Any thread may call it at any time."""
        if self._unreported is not None:
            self._tell(self._unreported, self._clock())

    @quietly
    def seeks_quorum(self, manager: Any) -> None:
        """Note that the script asks for a quorum."""
        self._reducing = False
        self._position.mark(manager._step, Stage.SEEKING_QUORUM)

    @quietly
    def reduces(self, manager: Any, tensor: Any) -> None:
        """Note that the script averages a tensor."""
        self._of(manager).pace.reduces(self._clock(), tensor)
        if self._position.stage == Stage.SEEKING_QUORUM:
            self._reducing = True
        else:
            self._position.mark(manager._step, Stage.COLLECTIVE)

    @quietly
    def has_waited(self, manager: Any, seconds: float) -> None:
        """Note that the script has waited for the quorum."""
        self._of(manager).pace.waited(seconds)

    @quietly
    def votes(self, manager: Any) -> None:
        """Note that the ranks of the group vote on the step."""
        self._position.mark(manager._step, Stage.VOTING)

    @quietly
    def has_quorum(self, manager: Any) -> None:
        """Report a new quorum; called in the quorum's thread. Must not call num_participants(): it waits for this
        thread."""
        if self._position.stage == Stage.SEEKING_QUORUM:
            self._position.mark(manager._step, Stage.COLLECTIVE if self._reducing else Stage.HAS_QUORUM)
        seen = self._read(manager)
        if self.on_quorum is not None:
            tell, self.on_quorum = self.on_quorum, None
            tell(messages.FirstQuorum())
        # Not before the first report: a group in its first quorum has not trained with its peers yet.
        if seen.reported not in (None, (seen.quorum_id, seen.participants)):
            self._tell(seen, self._clock())

    @quietly
    def has_voted(self, manager: Any, committed: bool) -> None:
        """Count a step that was committed or aborted."""
        now = self._clock()
        seen = self._read(manager)
        seen.step = manager.current_step()
        self._position.mark(seen.step, Stage.COMPUTING)
        seen.pace.ends(now, committed)
        if not committed:
            self._aborted += 1
            if not self._aborting or now - self._reported_at >= self._every_s:
                self._tell(seen, now)
            self._aborting = True
            return
        self._aborting = False
        self._committed += 1
        if seen.committed_at is not None:
            self._gap_s = max(self._gap_s or 0.0, now - seen.committed_at)
        seen.committed_at = now
        self._unreported = seen
        is_news = self._committed == 1 or seen.reported != (seen.quorum_id, seen.participants)
        if is_news or now - self._reported_at >= self._every_s:
            self._tell(seen, now)

    @quietly
    def shuts_down(self, manager: Any) -> None:
        """Note that the script shuts the Manager down: its heartbeats to the Lighthouse end."""
        self._position.mark(manager._step, Stage.SHUT_DOWN)

    def _of(self, manager: Any) -> _Seen:
        return self._managers.setdefault(manager, _Seen())

    def _read(self, manager: Any) -> _Seen:
        seen = self._of(manager)
        seen.quorum_id = manager._quorum_id
        seen.participants = manager._participating_replica_world_size
        return seen

    def _tell(self, seen: _Seen, now: float) -> None:
        gap_s, self._gap_s = self._gap_s, None
        self._unreported = None
        self._reported_at = now
        seen.reported = (seen.quorum_id, seen.participants)
        own_s, step_s = seen.pace.medians()
        self.report(
            messages.Progress(
                step=seen.step,
                quorum_id=seen.quorum_id,
                participants=seen.participants,
                committed=self._committed,
                aborted=self._aborted,
                gap_s=None if gap_s is None else round(gap_s, 4),
                own_s=own_s,
                step_s=step_s,
            )
        )
