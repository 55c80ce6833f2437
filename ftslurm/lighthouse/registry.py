"""The Lighthouse's state: which managers are alive, which ask for a quorum, which attempts are over. No I/O, no clock.

Identity: a manager makes a new replica id for every attempt (`name:uuid`), which the controller does not know. Every
request also has the address of the attempt's store, which the controller knows from the worker. So requests show which
id belongs to which attempt; heartbeats have nothing but the id.

Steps: the highest step of an issued quorum is kept for ever, and members below it alone get no quorum. So a step that
no manager can have reached is refused before it is kept (`_beyond`).

A Lighthouse that follows another one knows how far the run has come from the controller, which starts it, and which
attempts live from its orders. The last quorum is in a file (last_quorum.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from ftslurm.lighthouse.quorum import Ask, Member, NotYet, Quorum, Rules, View, judge
from ftslurm.protocol.messages import GroupAside

MOST_STEPS = 2**53  # no training takes as many; JSON readers keep whole numbers exact up to here
SILENT = 0.9  # of heartbeat_timeout_s, after which a silent manager's successor is let in: before the next quorum
QUORUMS = 10_000_000  # more than one Lighthouse issues; the ids of its successor are higher
STEADY_S = 1.0  # a silent manager takes part again once it is heard for so long: stacks wake a stopped one for less
BACK_WITHIN_S = 10.0  # managers dial a Lighthouse that has come back after 0.1 s, 0.15 s ... (T: src/net.rs)
OVER = "this attempt is over: the controller has seen it fail"


@dataclass(frozen=True)
class Refused:
    """The request is refused."""

    reason: str
    tell: bool = True  # whether to report it to the controller, which shows it to the user
    for_now: bool = False  # it may be let in soon


@dataclass
class Aside:
    """The attempt of a manager that was set aside."""

    group: int
    attempt: int
    heard: float  # when its manager was last heard
    silent: float  # when it was still found silent


class Book:
    """The Lighthouse's state. Each method handles one event."""

    def __init__(
        self, rules: Rules, now: float, attempt: int = 0, highest: int = 0, last: Quorum | None = None
    ) -> None:
        """Start as the first Lighthouse of a run, or as the successor of another one.

        The members of the predecessor's last quorum count as alive for BACK_WITHIN_S, the time they need to reconnect.
        Else the first to reconnect would be the only live one and get a quorum by itself.

        Args:
            attempt: the number of Lighthouses before this one.
            highest: no quorum of this run may be below this step.
            last: the predecessor's last quorum; None: there was none, or it is not known.
        """
        self.rules = rules
        self.next_id = attempt * QUORUMS + 1
        self.highest = highest
        self.last = last
        self.checked = attempt > 0  # only attempts that the controller has announced are let in
        self.told_all = not self.checked  # False: the controller is still telling a successor which attempts live
        self.stores: dict[str, tuple[int, int]] = {}  # of live attempts: store address -> group, attempt
        self.over: dict[int, int] = {}  # group -> its attempts up to this one are over
        self.fenced: set[str] = set()  # store addresses of attempts that are over
        self.beats: dict[str, float] = {}
        self.asking: dict[str, Ask] = {}
        self.known: dict[str, str] = {}  # replica id -> store address
        self.holder: dict[str, str] = {}  # store address -> the replica id in `known` that has it
        self.gone: set[str] = set()  # replica ids whose attempt is over
        self.aside: dict[str, Aside] = {}  # replica ids of silent managers, without which quorums are formed
        self.left: dict[str, int] = {}  # see View
        self.finished: set[int] = set()  # groups that have succeeded; the controller tells each Lighthouse of them
        self.broken_id: int | None = None  # the quorum that lost a member when that was set aside
        self.missed: dict[str, Member] = {}  # members that may not have got the last quorum before the predecessor died
        self.why: NotYet | None = None
        if last is None:
            return
        self.next_id = max(self.next_id, last.id + 1)
        for member in last.members:
            self.highest = max(self.highest, member.step)
            self._know(member.replica_id, member.store_address)
            self.beats[member.replica_id] = now + max(0.0, BACK_WITHIN_S - rules.heartbeat_timeout_s)
            self.missed[member.replica_id] = member

    # --- managers --------------------------------------------------------------------------------------------------

    def ask(self, member: Member, now: float) -> Ask | Quorum | Refused:
        """Handle a manager's request for a quorum. Return an Ask if it must wait for the next quorum."""
        name, store = member.replica_id, member.store_address
        if name in self.gone or store in self.fenced:
            self._bury(name)
            return Refused(OVER, tell=False)
        why_not = self._unknown(store) or self._beyond(member) or self._taken(name, store, now)
        if why_not is not None:
            return why_not
        self._know(name, store)
        self.beats[name] = now  # T: "implicit heartbeat"
        before = self.missed.pop(name, None)
        # A member of the predecessor's last quorum repeats its request: the answer was lost when the predecessor was
        # killed, and the others wait for this member in the step's first collective. After the step it would ask with
        # another step or, had that failed, with more commit_failures.
        repeats = before and (before.step, before.commit_failures) == (member.step, member.commit_failures)
        if self.last and repeats and self.broken() is None:
            return self.last
        ask = self.asking[name] = Ask(member, now)
        return ask

    def _unknown(self, store: str) -> Refused | None:
        """Return a refusal if the controller has announced no attempt with this store so far."""
        if not self.checked or store in self.stores:
            return None
        return Refused(
            f"a manager with the store {store[:40]!a} is refused, no attempt of this run has that store. Either the "
            "script makes its Manager in a child process (mp.spawn): ftslurm starts one process per rank "
            "(groups.workers), make it there. Or it gives it a store of its own (store_addr): set lighthouse=torchft",
            for_now=True,
        )

    def _beyond(self, member: Member) -> Refused | None:
        """Return a refusal if no member can have reached this step.

        A manager counts one step for each quorum whose step it commits, or copies the step of a member that it heals
        from. So once a quorum has been issued no member is more than one step beyond the highest. Before the first one
        (of a run, of a new history, after the last one was lost with its machine) groups come with the step of
        whatever checkpoint their script has loaded.
        """
        step, highest = member.step, self.highest
        who = f"a manager ({member.replica_id[:60]!a}, store {member.store_address[:40]!a}) asks with step {step}"
        if step >= MOST_STEPS:
            return Refused(f"{who}, and no training takes so many: refused")
        if self.last is None or step <= highest + 1:
            return None
        return Refused(
            f"{who}, and no quorum was beyond step {highest}, so that it would not be of this history: refused. Either "
            "its script has loaded a checkpoint of another run, or it commits several steps in one quorum; for the "
            "second set lighthouse=torchft"
        )

    def _taken(self, name: str, store: str, now: float) -> Refused | None:
        """Return a refusal if another live manager has this store. Forget one that is silent.

        A script may shut its Manager down and make a second one in the same process, which has a new id. Only when the
        controller announces stores: without it, several groups may have the same one.
        """
        other = self.holder.get(store, name)
        if other == name or not self.checked:
            return None
        if other in self.asking or now < self.beats.get(other, now) + SILENT * self.rules.heartbeat_timeout_s:
            return Refused(
                f"a second manager with the store {store[:40]!a} is refused while the first one ({other[:60]!a}) "
                "lives: a group has one Manager at a time",
                for_now=True,
            )
        self._forget(other)
        return None

    def withdraw(self, ask: Ask) -> None:
        """Remove a request whose manager has hung up or died.

        T keeps the request, so the dead manager becomes a member of the next quorum.
        """
        if self.asking.get(ask.member.replica_id) is ask:
            del self.asking[ask.member.replica_id]

    def beat(self, name: str, now: float) -> None:
        """Handle a heartbeat. One of a manager that has not asked yet says nothing: it may be of any process."""
        if name not in self.gone and (not self.checked or name in self.known or name in self.aside):
            self.beats[name] = now

    def form(self, now: float) -> Quorum | None:
        """Issue a quorum if the rules allow one.

        The requests of its members are answered. Those left out go on waiting, as new ones without a heartbeat (T: "not
        in quorum, retrying").
        """
        if not self.asking:
            return None
        least = max(1, self.rules.min_replicas - len(self.finished))
        verdict = judge(self.view(), replace(self.rules, min_replicas=least), now, self.next_id)
        self.why = verdict if isinstance(verdict, NotYet) else None
        if isinstance(verdict, NotYet):
            return None
        answered = set(verdict.ids)
        ahead = (self.left[m.replica_id] for m in verdict.members if m.step > self.left.get(m.replica_id, inf))
        begun = min([max(m.step for m in verdict.members), *ahead])
        away = {*self.left, *(self.last.ids if self.last is not None else ())} - answered - self.gone
        self.left = {name: min(begun, self.left.get(name, begun)) for name in away}
        self.last = quorum = verdict
        self.next_id = max(self.next_id, quorum.id + 1)
        self.highest = max(self.highest, *(m.step for m in quorum.members))
        self.missed.clear()
        self.asking = {name: ask for name, ask in self.asking.items() if name not in answered}
        for ask in self.asking.values():
            ask.since = now
        return quorum

    def view(self) -> View:
        """Return what the rules need to decide on a quorum now."""
        return View(
            beats=self.beats,
            asking=self.asking,
            last=self.last,
            gone=self.gone | self.aside.keys() | self._lost(),
            broken=self.last is not None and self.last.id == self.broken_id,
            expected=len(self.stores.keys() - self.known.values()),
            highest=self.highest,
            over=self.gone | self._lost(),
            left=self.left,
        )

    def prune(self, now: float) -> None:
        """Forget managers whose last heartbeat is older than heartbeat_timeout_s."""
        limit = now - self.rules.heartbeat_timeout_s
        for name in [name for name, beat in self.beats.items() if beat <= limit and name not in self.asking]:
            self._forget(name)
        for name in self.known.keys() - self.beats.keys():
            self._forget(name)

    # --- the controller --------------------------------------------------------------------------------------------

    def announce(self, group: int, attempt: int, store: str) -> None:
        """Record the store of an attempt; earlier attempts are over. From now on only announced stores are let in."""
        if attempt <= self.over.get(group, -1):
            return
        self.checked = True
        self.evict(group, attempt - 1)
        self.fenced.discard(store)  # an old attempt's port, used again
        self.stores[store] = (group, attempt)

    def evict(self, group: int, attempt: int, store: str | None = None, finished: bool = False) -> None:
        """End this attempt and all earlier ones of the group: forget them at once and never let them in again.

        Args:
            finished: the group has succeeded. The last ones to finish may be fewer than min_replicas.
        """
        (self.finished.add if finished else self.finished.discard)(group)
        self.over[group] = max(attempt, self.over.get(group, -1))
        dead = {address for address, one in self.stores.items() if one[0] == group and one[1] <= attempt}
        owner = self.stores.get(store) if store is not None else None
        if store is not None and (owner is None or store in dead):  # else another attempt has the port now
            dead.add(store)
        for address in dead:
            self.stores.pop(address, None)
            self.fenced.add(address)
        for name in [name for name, address in self.known.items() if address in dead]:
            self._bury(name)

    def set_aside(self, now: float) -> list[GroupAside]:
        """Set aside silent members of the last quorum, and those no longer that are steady. Return what has changed.

        When a node vanishes (a power failure, a broken cable), no connection closes: the others wait for it in a
        collective. Its quorum is broken, as after a death. If more than half of the members are silent, the Lighthouse
        has lost its own network, or did not run: then silence is no evidence.
        """
        changes, limit = [], now - self.rules.heartbeat_timeout_s
        for name, one in list(self.aside.items()):
            beat = self.beats.get(name, 0.0)
            if self.over.get(one.group, -1) >= one.attempt:
                del self.aside[name]
            elif beat <= limit:
                one.silent = now
            elif beat >= one.silent + STEADY_S:
                del self.aside[name]
                changes.append(GroupAside(one.group, one.attempt, False, round(now - one.heard, 3)))
        last = self.last
        silent = [m for m in last.members if self.beats.get(m.replica_id, now) <= limit] if last is not None else []
        if last is None or 2 * len(silent) > len(last.members):
            return changes
        for member in silent:
            owner, name = self.stores.get(member.store_address), member.replica_id
            if owner is not None and name not in self.aside:
                self.aside[name] = Aside(*owner, self.beats[name], now)
                self.broken_id = last.id
                changes.append(GroupAside(*owner, True, round(now - self.beats[name], 3)))
        return changes

    def broken(self) -> int | None:
        """Return the id of the last quorum if one of its members was evicted or set aside, else None.

        The other members cannot finish it, and it is never issued again.
        """
        last = self.last
        return last.id if last is not None and (self._lost() or last.id == self.broken_id) else None

    def _lost(self) -> set[str]:
        """Return the members of the last quorum whose attempt is over.

        A successor is told of all live attempts, one after the other: a member that it has not heard of when it has
        been told of all died before it began.
        """
        if self.last is None or not self.checked or not self.told_all:
            return set()
        return {member.replica_id for member in self.last.members if member.store_address not in self.stores}

    def new_history(self, step: int) -> None:
        """Start a new history: all groups restart from the checkpoint of this step, 0 if there is none.

        They wait for one another as at the first start.

        Raises:
            ValueError: no training takes so many steps.
        """
        if not 0 <= step < MOST_STEPS:
            raise ValueError(f"not a step: {step:.3g}")
        self.highest = step
        self.last = None
        self.left.clear()
        self.missed.clear()

    def _know(self, name: str, store: str) -> None:
        self._let_go(name)
        self.known[name] = store
        self.holder[store] = name

    def _let_go(self, name: str) -> None:
        """Forget which store a manager has."""
        store = self.known.pop(name, None)
        if store is not None and self.holder.get(store) == name:
            del self.holder[store]

    def _bury(self, name: str) -> None:
        """End a manager's attempt."""
        self.gone.add(name)
        self._forget(name)

    def _forget(self, name: str) -> None:
        self.beats.pop(name, None)
        self.asking.pop(name, None)
        self._let_go(name)
