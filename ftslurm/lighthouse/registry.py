"""What the Lighthouse knows: who is alive, who asks, whose attempt is over. Changes by calls alone; no I/O, no clock.

Identity: a manager makes up a new replica id for every attempt (`name:uuid`), so the controller cannot know it. But
the address of the attempt's store is in every request, and the controller has it from the worker. So requests teach
which id belongs to which attempt, and heartbeats, which carry nothing but the id, are judged by that.

Steps: the highest step of an issued quorum is remembered for good, and who is below it gets no quorum. So a step that
nobody can have reached is refused before it can be remembered (`_beyond`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ftslurm.lighthouse.quorum import Ask, Formed, Member, NotYet, Quorum, Rules, View, has_state, judge

MOST_STEPS = 2**53  # no training takes as many; JSON readers keep whole numbers exact up to here
SILENT = 0.9  # of heartbeat_timeout_s: so early a manager's successor is let in, in time for the quorum without it
MOST_IDS = 10_000  # of any kind; what is beyond is not remembered
BACK_WITHIN_S = 10.0  # managers dial a Lighthouse that has come back after 0.1 s, 0.15 s ... (T: src/net.rs)
OVER = "this attempt is over: the controller has seen it fail"
GIVEN_UP = (
    "nobody of this manager's training was heard for forget_after_ms, and groups that came later have begun anew: "
    "start its group again, and it heals from them"
)


@dataclass(frozen=True)
class Refused:
    """Not now and not later."""

    reason: str
    tell: bool = False  # whether the controller, and so a person, should hear of it


@dataclass(frozen=True)
class Unknown:
    """No attempt of this run that the controller has told of; maybe it is just about to."""

    store: str


@dataclass(frozen=True)
class Taken:
    """The store is that of another manager that lives. It may be about to end: then this one takes its place.

    A script may make a second Manager in the same process when the first is shut down, and that one has a new id.
    """

    store: str
    holder: str  # the replica id of the other one
    free_at: float  # when this one is let in if nothing more is heard of the other


@dataclass
class Memory:
    """What outlives the Lighthouse's process."""

    next_id: int = 1
    highest: int = 0
    checked: bool = False  # whether the controller has told of any attempt: from then on there are no others
    stores: dict[str, tuple[int, int]] = field(default_factory=dict)  # live: store address -> group, attempt
    over: dict[int, int] = field(default_factory=dict)  # group -> its attempts up to this one are over
    fenced: dict[str, None] = field(default_factory=dict)  # store addresses of attempts that are over
    former: dict[str, None] = field(default_factory=dict)  # replica ids of histories that were given up (`give_up`)
    last: Quorum | None = None

    @property
    def begun(self) -> bool:
        """Whether the present history has had a quorum."""
        return self.last is not None or self.highest > 0


class Book:
    """The Lighthouse's state; every method is one thing that can happen to it."""

    def __init__(self, rules: Rules, memory: Memory, now: float) -> None:
        """Begin, or go on where a predecessor was killed.

        The members of its last quorum count as alive until they have had the time to dial again, and no longer: else
        the first of them to come would be alone and everybody there is, and would step by itself.
        """
        self.rules = rules
        self.memory = memory
        self.beats: dict[str, float] = {}
        self.asking: dict[str, Ask] = {}
        self.known: dict[str, str] = {}  # replica id -> store address
        self.holder: dict[str, str] = {}  # store address -> the replica id in `known` that has it
        self._known_at: dict[str, set[str]] = {}  # store address -> all replica ids in `known` with it
        self._stores_of: dict[int, set[str]] = {}  # group -> its addresses in memory.stores
        for store, (group, _) in memory.stores.items():
            self._stores_of.setdefault(group, set()).add(store)
        self._last_stores = frozenset(m.store_address for m in memory.last.members) if memory.last else frozenset()
        self._inherited = frozenset(memory.last.ids) if memory.last else frozenset()  # ids of the predecessor's quorum
        self.gone: dict[str, None] = {}  # replica ids whose attempt is over
        self.holders: dict[str, None] = {}  # replica ids that were in a quorum of this history, and may have its state
        self.heard = now  # when one of them was last heard
        self.patient_until = now + (BACK_WITHIN_S if memory.begun else 0.0)  # they have had the time to dial by then
        self.missed: dict[str, Member] = {}  # of the last quorum: who may have missed it when the predecessor died
        self.why: NotYet | None = None
        if memory.last is not None:
            for member in memory.last.members:
                if member.store_address in memory.fenced:
                    self._bury(member.replica_id)
                    continue
                self._know(member.replica_id, member.store_address)
                self.beats[member.replica_id] = now + max(0.0, BACK_WITHIN_S - rules.heartbeat_timeout_s)
                self.missed[member.replica_id] = member
            if self.gone:
                self.missed.clear()
            self.holders.update(dict.fromkeys(memory.last.ids))

    # --- managers --------------------------------------------------------------------------------------------------

    def ask(self, member: Member, now: float) -> Ask | Quorum | Refused | Unknown | Taken:
        """A manager asks for a quorum; it is to wait, unless there is an answer already."""
        name, store = member.replica_id, member.store_address
        if name in self.gone or store in self.memory.fenced:
            self._bury(name)
            return Refused(OVER)
        if self._given_up(name):
            return Refused(GIVEN_UP, tell=True)
        if self.memory.checked and store not in self.memory.stores:
            return Unknown(store)
        if (why := self._beyond(member)) is not None:
            return Refused(why, tell=True)
        if (taken := self._taken(name, store, now)) is not None:
            return taken
        if name not in self.known and len(self.known) >= MOST_IDS:
            return Refused(f"there are {MOST_IDS} groups already")
        self._know(name, store)
        if not has_state(member, self.memory.highest, of_history=True):
            self.holders.pop(name, None)  # by its own word it has lost the state, or never got it
        self._hear(name, now)  # T: "implicit heartbeat"
        again = self.missed.pop(name, None)
        if again is not None and self._missed_it(again, member):
            assert self.memory.last is not None
            return self.memory.last
        ask = self.asking[name] = Ask(member, now)
        return ask

    def ask_again(self, ask: Ask, now: float) -> Ask | Refused:
        """A quorum was issued without this one, who goes on waiting (T: "not in quorum, retrying", no heartbeat)."""
        name = ask.member.replica_id
        if self.known.get(name) != ask.member.store_address:
            return Refused("this attempt is over, or was silent for too long")
        again = self.asking[name] = Ask(ask.member, now)
        return again

    def _beyond(self, member: Member) -> str | None:
        """Why no member can be at this step; None: it may be.

        A manager counts one step for each quorum whose step it commits, or copies the step of a member that it heals
        from. So once a quorum has been issued nobody is more than one step beyond the highest. Before the first one
        (of a run, of a new history, after the last one was lost with its machine) groups come with the step of
        whatever checkpoint their script has loaded. With lineage=off steps may be anything.
        """
        step, highest = member.step, self.memory.highest
        who = f"a manager ({member.replica_id[:60]!a}, store {member.store_address[:40]!a}) asks with step {step}"
        if step >= MOST_STEPS:
            return f"{who}, and no training takes so many: refused"
        if not self.rules.lineage or self.memory.last is None or step <= highest + 1:
            return None
        return (
            f"{who}, and no quorum was beyond step {highest}, so that it would not be of this history: refused. Either "
            "its script has loaded a checkpoint of another run, or it commits several steps in one quorum; for the "
            "second set lighthouse.lineage=false (of a stand-alone Lighthouse: lineage=off)"
        )

    def _taken(self, name: str, store: str, now: float) -> Taken | None:
        """Whether another manager has this store, and lives. Once it is silent it is forgotten.

        Only where the controller tells of stores: elsewhere they may be anything, also the same for several groups.
        """
        other = self.holder.get(store, name)
        if other == name or not self.memory.checked:
            return None
        free_at = self.beats.get(other, now) + SILENT * self.rules.heartbeat_timeout_s
        if other in self.asking or now < free_at:
            return Taken(store, other, free_at)
        self._forget(other)
        return None

    def _missed_it(self, before: Member, now: Member) -> bool:
        """Whether a member of the predecessor's last quorum asks for that very quorum a second time.

        Then its answer was lost when the predecessor was killed, and other members, who got theirs, are waiting for
        it in the step's first collective. After the step it would ask with another step or, had that failed, with
        more commit_failures.
        """
        return (before.step, before.commit_failures) == (now.step, now.commit_failures)

    def withdraw(self, ask: Ask) -> None:
        """Nobody waits for the answer any more: the manager has hung up or died.

        (T keeps the request, and makes the dead a member of the next quorum.)
        """
        if self.asking.get(ask.member.replica_id) is ask:
            del self.asking[ask.member.replica_id]

    def beat(self, name: str, now: float) -> None:
        """A heartbeat."""
        if name in self.gone or self._given_up(name):
            return
        if name not in self.beats and name not in self.known and len(self.beats) >= MOST_IDS:
            return  # until `prune`, which is called every second, has made room
        self._hear(name, now)

    def _hear(self, name: str, now: float) -> None:
        self.beats[name] = now
        if name in self.holders:
            self.heard = now

    def form(self, now: float) -> Quorum | None:
        """Issue a quorum if there is one. All requests are answered or void then; who is not in it asks again."""
        if not self.asking:
            return None
        verdict = judge(self.view(), self.rules, now, self.memory.next_id)
        self.why = verdict if isinstance(verdict, NotYet) else None
        if not isinstance(verdict, Formed):
            return None
        quorum, memory = verdict.quorum, self.memory
        if not memory.begun:
            self._begin(quorum)
        memory.last = quorum
        self._last_stores = frozenset(m.store_address for m in quorum.members)
        memory.next_id = max(memory.next_id, quorum.id + 1)
        memory.highest = max(memory.highest if self.rules.lineage else 0, *(m.step for m in quorum.members))
        for name in quorum.ids:
            _remember(self.holders, name)
        self.heard = now
        self.missed.clear()
        self.asking = {}
        return quorum

    def view(self) -> View:
        """What counts for a quorum, at this moment."""
        stores = self.memory.stores
        return View(
            beats=self.beats,
            asking=self.asking,
            last=self.memory.last,
            gone=self.gone.keys(),
            strangers=self.beats.keys() - self.known.keys() if self.memory.checked else None,
            expected=len(stores.keys() - self.known.values()),
            highest=self.memory.highest,
            holders=self.holders.keys(),
        )

    def prune(self, now: float) -> None:
        """Forget whose heartbeats have been missing for so long that they count for nothing."""
        limit = now - self.rules.heartbeat_timeout_s
        for name in [name for name, beat in self.beats.items() if beat <= limit and name not in self.asking]:
            self._forget(name)
        for name in self.known.keys() - self.beats.keys():
            self._forget(name)

    # --- the controller --------------------------------------------------------------------------------------------

    def announce(self, group: int, attempt: int, store: str) -> None:
        """This attempt of a group has this store. Earlier ones of the group are over; from now on all are checked."""
        if attempt <= self.memory.over.get(group, -1):
            return
        self.memory.checked = True
        self.evict(group, attempt - 1)
        self.memory.fenced.pop(store, None)  # an old attempt's port, used again
        if (owner := self.memory.stores.get(store)) is not None:
            self._stores_of[owner[0]].discard(store)
        self.memory.stores[store] = (group, attempt)
        self._stores_of.setdefault(group, set()).add(store)

    def evict(self, group: int, attempt: int, store: str | None = None) -> None:
        """This attempt and all earlier ones of the group are over: forgotten at once, and never let in again."""
        memory = self.memory
        memory.over[group] = max(attempt, memory.over.get(group, -1))
        own = self._stores_of.get(group, set())
        dead = {address for address in own if memory.stores[address][1] <= attempt}
        own -= dead
        owner = memory.stores.get(store) if store is not None else None
        if store is not None and (owner is None or store in dead):  # else the port is another attempt's by now
            dead.add(store)
        for address in dead:
            memory.stores.pop(address, None)
            _remember(memory.fenced, address)
            for name in list(self._known_at.get(address, ())):
                self._bury(name)

    def broken(self) -> int | None:
        """The id of the quorum issued last, if one of its members is gone by the controller's word.

        No other member can go on with it, and it is never issued again.
        """
        last = self.memory.last
        gone = not self.memory.fenced.keys().isdisjoint(self._last_stores)
        return last.id if last is not None and gone else None

    def new_history(self, step: int) -> None:
        """All groups start over, from a checkpoint: the run's highest step is this one now, and no quorum was before.

        So they wait for one another as they did at the first start.

        Raises:
            ValueError: no training takes so many steps.
        """
        if not 0 <= step < MOST_STEPS:
            raise ValueError(f"not a step: {step:.3g}")
        self.memory.highest = step
        self.memory.last = None
        self.missed.clear()
        self.holders.clear()

    # --- without a controller --------------------------------------------------------------------------------------

    def forsaken(self, now: float, after_s: float) -> bool:
        """Whether nobody who may have the training's state has been heard for so long. Others may be: who comes from
        an older checkpoint asks again and again, and is refused."""
        after_s = max(after_s, self.rules.heartbeat_timeout_s)
        return self.memory.begun and now >= max(self.heard + after_s, self.patient_until)

    def give_up(self) -> None:
        """Let who comes next begin anew. Should one of the old history come first, it goes on after all."""
        for name in self.holders:
            _remember(self.memory.former, name)
        self.new_history(0)

    def _begin(self, quorum: Quorum) -> None:
        """The first quorum of a history. With somebody of the one that was given up it is that one, which goes on;
        without, nobody of that one is let in any more: its state is another one, also where its step is the same."""
        former = self.memory.former
        if any(name in former for name in quorum.ids):
            former.clear()
        for name in former:
            self._forget(name)

    def _given_up(self, name: str) -> bool:
        return name in self.memory.former and self.memory.begun

    def _know(self, name: str, store: str) -> None:
        if (before := self.known.get(name)) is not None and before != store:
            self._drop_store(name, before)
        self.known[name] = store
        self.holder[store] = name
        self._known_at.setdefault(store, set()).add(name)

    def _drop_store(self, name: str, store: str) -> None:
        if self.holder.get(store) == name:
            del self.holder[store]
        names = self._known_at[store]
        names.discard(name)
        if not names:
            del self._known_at[store]

    def _bury(self, name: str) -> None:
        """The attempt of this manager is over. A quorum with it is over, too: nobody is given that a second time."""
        _remember(self.gone, name)
        self._forget(name)
        if name in self._inherited:
            self.missed.clear()

    def _forget(self, name: str) -> None:
        self.beats.pop(name, None)
        self.asking.pop(name, None)
        store = self.known.pop(name, None)
        if store is not None:
            self._drop_store(name, store)


def _remember(names: dict[str, None], name: str) -> None:
    """Add to a set that keeps the newest MOST_IDS."""
    names[name] = None
    if len(names) > MOST_IDS:
        del names[next(iter(names))]
