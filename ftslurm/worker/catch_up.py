"""Heals a group beside the training (torchft.heal=beside): the others do not wait for its state.

torchft has all groups wait until the state is copied. Here a group that comes back takes part in each quorum, with
zeros, and does not count. It goes through these phases (`Phase`):

FETCHING   The small values of step S are loaded: schedules and counters go on from there. A donor keeps a copy of the
           state of S, which comes in the background. The averaged gradients are kept, as the optimizer would have got
           them, with its hyperparameters.
REPLAYING  The state of S is loaded. Each step applies some of the kept gradients, and keeps its own.
CHECKING   It takes each step as the others do. At one of them its digest is compared with a donor's.
JOINING    It heals as torchft does, but from a donor comes only what no optimizer trains: buffers, averages, random
           states. From the next step on it counts.
ANEW       It begins anew: the donor has gone.
BLOCKING   It heals as torchft does: something does not fit, or has failed.

All the while it reports step 0 to the Lighthouse, like a group without state: others never heal from it, do not count
it in the divisor, and do not continue with it alone. If its step differs from the quorum's, because one of them did not
commit a step, it begins anew.

All ranks of a group change to one of the last three phases at the same step, which one of them writes to the group's
store. What reads weights meanwhile (`eval()`, `state_dict()`, the Manager's `shutdown()`) first waits until
they are right.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from enum import Enum, auto
from math import inf
from typing import Any
from weakref import WeakSet

import torch

from ftslurm.checkpoint.devices import synchronize
from ftslurm.checkpoint.trees import local, tensors_by_path
from ftslurm.errors import complain
from ftslurm.guard.memory import available_mb
from ftslurm.worker import buffers, digest
from ftslurm.worker.transport import Fetch, Header, Kind, Refused, RunTransport, ask, in_background

SHARE = 0.2  # of a step that replaying may take beyond the optimizer's own step
MOST = 8  # steps that are replayed in one
BEGINS = 4  # then it heals by blocking
BLOCKS = "the group heals by blocking, not beside the training (torchft.heal)"


class Phase(Enum):
    """How far a group has caught up."""

    FETCHING = auto()
    REPLAYING = auto()
    CHECKING = auto()
    JOINING = auto()
    ANEW = auto()
    BLOCKING = auto()


Kept = tuple[torch.optim.Optimizer, list[tuple[torch.Tensor, torch.Tensor]], list[dict[str, Any]]]


class Beside:
    """Catches up in this process, and lets others do so.

    Args:
        tell: called with what people should know.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._optimizers: WeakSet[Any] = WeakSet()  # that torchft's Optimizer wraps
        self._catch: CatchUp | None = None
        self._begins = 0
        self._begun_at, self._step_s = time.monotonic(), 0.0
        self._reads = False  # the state is read here, and not by the script

    @property
    def apart(self) -> bool:
        """Return whether this process has other weights than the groups that count."""
        return self._catch is not None

    def install(self) -> None:
        """Have torchft's Optimizer keep gradients, and what reads weights wait for them."""
        kind = importlib.import_module("torchft.optim").OptimizerWrapper
        make = kind.__init__

        @functools.wraps(make)
        def made(wrapper: Any, manager: Any, optim: Any, *args: Any, **kwargs: Any) -> None:
            make(wrapper, manager, optim, *args, **kwargs)
            self._optimizers.add(optim)

        @functools.wraps(kind.step)
        def step(wrapper: Any, closure: object = None) -> None:
            assert closure is None, "optimizers that use closures are not supported"
            if wrapper.manager.should_commit():
                self._steps(wrapper.optim)

        def first(owner: Any, name: str, when: Callable[..., bool] = lambda *_, **__: True) -> None:
            original = getattr(owner, name)

            @functools.wraps(original)
            def read(*args: Any, **kwargs: Any) -> Any:
                if self._catch is not None and when(*args[1:], **kwargs):
                    self.finish()
                return original(*args, **kwargs)

            setattr(owner, name, read)

        kind.__init__, kind.step = made, step
        first(torch.nn.Module, "train", lambda mode=True: not mode)
        first(torch.nn.Module, "state_dict")
        first(torch.optim.Optimizer, "state_dict")

    # --- called by the Manager, in the main thread ------------------------------------------------------------------

    def step_begins(self, manager: Any) -> None:
        """Go on before the next quorum is asked for."""
        now = time.monotonic()
        self._begun_at, self._step_s = now, now - self._begun_at
        manager._client.reported = None
        if (catch := self._catch) is None:
            return
        try:
            if not catch.settled:
                self._go_on(manager, catch)
        except (OSError, Refused) as error:
            self._tell(f"catching up failed, and begins anew (torchft.heal): {error}")
            catch.agree(manager, Phase.ANEW)
        except Exception as error:
            self._block(manager, catch, repr(error))
        catch.follow(manager)
        manager._client.reported = 0

    def _go_on(self, manager: Any, catch: CatchUp) -> None:
        if catch.phase is Phase.FETCHING and catch.fetched.done():
            catch.load(self._live(manager, catch.header))
        if catch.phase is Phase.FETCHING and catch.kept_bytes > catch.room:
            self._block(manager, catch, f"the gradients kept for {len(catch.kept)} steps take too much memory")
        if catch.phase is Phase.REPLAYING:
            catch.replay(self._step_s * SHARE)
        if catch.phase is Phase.CHECKING and (equal := catch.check(manager, self._live)) is not None:
            if equal:
                catch.agree(manager, Phase.JOINING)
            else:
                self._block(manager, catch, f"its digest of step {catch.checked} differs from a donor's")

    def _block(self, manager: Any, catch: CatchUp, why: str) -> None:
        self._tell(f"{BLOCKS}: {why}")
        catch.agree(manager, Phase.BLOCKING)

    def completes(self, manager: Any) -> None:
        """Put this process's own tensors into the state that is loaded next, where a donor's have not come."""
        if (catch := self._catch) is not None and catch.received is not None:
            header, came = catch.received
            own = self._live(manager, header)
            whole = [
                have if one is None and have is not None else header.whole(n, one)
                for n, (one, have) in enumerate(zip(came, own, strict=True))
            ]
            manager._pending_state_dict = header.build(whole)

    def loaded(self, manager: Any) -> None:
        """Note that the state is loaded."""
        if (catch := self._catch) is None:
            return
        if catch.received is None or catch.phase is Phase.JOINING:
            if catch.received is not None:
                complain(
                    f"caught up at step {manager._step} beside the training, {catch.size / 1e6:.0f} MB and "
                    f"{catch.replayed} kept steps after step {catch.begun}, in {time.monotonic() - catch.since:.1f} s"
                )
            catch.close()
            self._catch, self._begins = None, 0
        catch.received = None

    def _steps(self, optim: torch.optim.Optimizer) -> None:
        """Take the optimizer's step, or keep it for later."""
        if (catch := self._catch) is not None and catch.phase is not Phase.CHECKING:
            catch.keep(optim)
            return
        if catch is not None and catch.mine is not None:
            catch.mine.exception()  # the digest of what changes now
        optim.step()

    def finish(self) -> None:
        """Wait until the weights are those of this step."""
        if (catch := self._catch) is None or self._reads or threading.current_thread() is not threading.main_thread():
            return
        try:
            if catch.phase is Phase.FETCHING and catch.received is None:
                catch.fetched.result()
                catch.load(self._live(catch.manager, catch.header))
            while catch.phase is Phase.REPLAYING:
                catch.replay(inf)
        except Exception as error:
            self._tell(f"the script reads weights of a group that has not caught up (torchft.heal): {error!r}")

    # --- called by the Manager, in the quorum's thread --------------------------------------------------------------

    def answered(self, manager: Any, quorum: Any, allow_heal: bool) -> None:
        """Decide what torchft does in a quorum.

        Raises:
            RuntimeError: the others have gone, and this process does not have the state.
        """
        transport, catch = manager._checkpoint_transport, self._catch
        if not isinstance(transport, RunTransport):
            return
        transport.trained = self.trained
        transport.receive = None
        behind = quorum.max_world_size < quorum.replica_world_size
        if not quorum.heal and (behind or quorum.recover_dst_replica_ranks):
            transport.opens(quorum.max_step, manager._manager_state_dict)
        quorum.recover_dst_replica_ranks = []
        if not quorum.heal or not allow_heal:
            if catch is not None:
                raise RuntimeError("no group has the state of the training that this one was catching up with")
            return
        over = catch is not None and catch.phase in (Phase.ANEW, Phase.BLOCKING)
        if catch is not None and not over and manager._step == quorum.max_step:
            catch.donor = quorum.recover_src_manager_address
            if catch.phase is Phase.JOINING:
                transport.receive = catch.receive_rest
            else:
                quorum.heal = False
            return
        if catch is not None:
            catch.close()
        if (catch is not None and catch.phase is Phase.BLOCKING) or quorum.max_step == 0:
            return
        if why := self._unfit(manager, quorum):
            self._tell(f"{BLOCKS}: {why}")
            if catch is not None:
                catch.phase, catch.settled = Phase.BLOCKING, True
            return
        self._begins += 1
        self._catch = CatchUp(manager, transport, quorum, self._begins)
        transport.receive = self._catch.begin

    def linger(self, manager: Any) -> None:
        """Wait for those that still fetch a copy of the state, at the end of the script."""
        transport = manager._checkpoint_transport
        if isinstance(transport, RunTransport):
            transport.linger()

    def _unfit(self, manager: Any, quorum: Any) -> str:
        """Return why a group that is behind cannot catch up; "": it can."""
        if self._catch is None and manager._step > 0:
            return "it has a state of its own"
        if self._begins == BEGINS:
            return f"it has begun {BEGINS} times"
        if not self._optimizers or not all(isinstance(one, torch.optim.Optimizer) for one in self._optimizers):
            return "the script has no optimizer of torch in torchft's Optimizer"
        if quorum.max_world_size < manager._min_replica_size:
            return "without it the run has fewer groups than it needs for a step"
        return "buffers are averaged (health.buffers)" if buffers.is_wanted() else ""

    def has_quorum(self, manager: Any, quorum: Any, allow_heal: bool) -> None:
        """Do not count groups that are behind as participants, even with a synchronous quorum."""
        if self._optimizers and allow_heal and not manager._use_async_quorum:
            size, rank = quorum.max_world_size, quorum.max_replica_rank
            if manager._replica_world_size_mode.name == "FIXED_WITH_SPARES":
                size = min(size, manager._min_replica_size)
                rank = rank if rank is None or rank < size else None
            manager._participating_replica_rank, manager._participating_replica_world_size = rank, size

    # --- the state of this process ----------------------------------------------------------------------------------

    def trained(self) -> set[int]:
        """Return the addresses of all that the optimizers train, and of their state."""
        return digest.trained(one for one in self._optimizers if isinstance(one, torch.optim.Optimizer))

    def _live(self, manager: Any, header: Header) -> list[Any]:
        """Return this process's tensors in the donor's order, with None where no tensor has that type and shape."""
        self._reads = True
        try:
            have = tensors_by_path({"user": {key: read() for key, read in manager._user_state_dicts.items()}})
        finally:
            self._reads = False
        return [
            one if one is not None and (one.dtype, local(one).shape) == known else None
            for one, known in zip(map(have.get, header.paths), header.shapes, strict=True)
        ]


class CatchUp:
    """One way from a step to the others'."""

    header: Header
    fetched: Future[None]
    size = 0  # of the state, in bytes
    checked = 0  # the step whose digests are compared

    def __init__(self, manager: Any, transport: RunTransport[Any], quorum: Any, number: int) -> None:
        self.manager, self.transport = manager, transport
        self.phase = Phase.FETCHING
        self.received: tuple[Header, list[torch.Tensor | None]] | None = None  # what is loaded next
        self.begun, self.since, self.replayed = quorum.max_step, time.monotonic(), 0
        self.kept = deque[Kept]()
        self.kept_bytes = 0
        self.room = (available_mb() << 20) / 2 / int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        self.donor = quorum.recover_src_manager_address  # its manager's
        self.settled = False  # which phase follows
        self.mine: Future[str] | None = None
        self._theirs: Future[str] | None = None
        self._lead = 2  # steps from the request for a digest to its step
        self._opened = contextlib.ExitStack()
        self._key = f"ftslurm/catch-up/{quorum.max_step}/{number}"

    # --- in the quorum's thread -------------------------------------------------------------------------------------

    def begin(self, address: str, step: int, patience_s: float) -> Any:
        """Have a donor keep the state of a step; return it without its tensors, which come in the background."""
        try:
            connection = self._opened.enter_context(self.transport.dial(address, patience_s))
            self.header = Header.received(connection, Kind.KEEP, step)
        except Exception:
            self.agree(self.manager, Phase.ANEW, 0)
            self.phase = Phase.ANEW
            raise
        self._tensors = self.header.empty()
        self.size = sum(one.nbytes for one in self._tensors)
        self.fetched = in_background(self.transport.fetch, address, step, self._tensors, patience_s)
        self.received = self.header, [None] * len(self._tensors)
        return self.header.build([None] * len(self._tensors))

    def receive_rest(self, address: str, step: int, patience_s: float) -> Any:
        """Fetch what no optimizer trains."""
        with self.transport.dial(address, patience_s) as connection:
            header = Header.received(connection, Kind.HEADER, step)
        came = [None if counts else one for one, counts in zip(header.empty(), header.trained, strict=True)]
        rest = [one for one in came if one is not None]
        Fetch(lambda: self.transport.dial(address, patience_s), Kind.REST, step, rest).run()
        self.received = header, came
        return header.build([None] * len(came))

    # --- in the main thread -----------------------------------------------------------------------------------------

    def keep(self, optim: torch.optim.Optimizer) -> None:
        """Keep a step of an optimizer."""
        pairs = [(p, on_host(p.grad)) for group in optim.param_groups for p in group["params"] if p.grad is not None]
        synchronize([p for p, _ in pairs])
        self.kept.append((optim, pairs, hyperparameters(optim)))
        self.kept_bytes += sum(grad.nbytes for _, grad in pairs)

    def load(self, own: list[Any]) -> None:
        """Load the state that has come, without its small values."""
        self.fetched.result()
        with torch.no_grad():
            for one, came in zip(own, self._tensors, strict=True):
                if one is not None:
                    local(one).copy_(came)
        self._tensors = []
        self.close()
        self.phase = Phase.REPLAYING

    def replay(self, most_s: float) -> None:
        """Apply kept gradients: two, and as many more as the time allows."""
        began, count = time.monotonic(), 0
        while self.kept and (count < 2 or (count < MOST and time.monotonic() - began < most_s) or most_s == inf):
            optim, pairs, then = self.kept.popleft()
            now, grads = hyperparameters(optim), [(p, p.grad) for g in optim.param_groups for p in g["params"]]
            for p, _ in grads:
                p.grad = None
            for p, grad in pairs:
                p.grad = torch.empty_like(p)
                local(p.grad).copy_(grad)
            set_hyperparameters(optim, then)
            optim.step()
            set_hyperparameters(optim, now)
            for p, had in grads:
                p.grad = had
            synchronize([p for p, _ in pairs])
            count += 1
        self.replayed += count
        if not self.kept:
            self.phase = Phase.CHECKING

    def check(self, manager: Any, live: Callable[[Any, Header], list[Any]]) -> bool | None:
        """Return whether this process equals a donor, or None while the comparison is under way."""
        if self._theirs is None:
            self.checked, self.mine = manager._step + self._lead, None
            self._theirs = in_background(self._ask, self.checked)
        if manager._step == self.checked and self.mine is None:
            own = zip(self.header.paths, live(manager, self.header), self.header.trained, strict=True)
            tensors = {path: local(one) for path, one, counts in own if counts}
            synchronize(tensors.values())
            self.mine = in_background(digest.digest, tensors)
        if manager._step < self.checked or not self._theirs.done():
            return None
        if (error := self._theirs.exception()) is None and self.mine is not None:
            return self._theirs.result() == self.mine.result()
        if self._lead > 100:
            raise error or TimeoutError("no donor compares its digest")
        self._lead, self._theirs = self._lead * 2, None
        return None

    def _ask(self, step: int) -> str:
        """Ask a donor for its digest of a step."""
        manager, patience_s = self.manager, self.manager._timeout.total_seconds()
        client = importlib.import_module("torchft.manager").ManagerClient(self.donor, manager._connect_timeout)
        address = client._checkpoint_metadata(manager._group_rank, timeout=manager._timeout)
        with self.transport.dial(address, patience_s) as connection:
            return ask(connection, Kind.DIGEST, step).decode()

    def agree(self, manager: Any, phase: Phase, at: int | None = None) -> None:
        """Wish for a phase, at a step (two later if None): for JOINING all ranks of the group must, else one does."""
        self.settled = True
        ranks = manager._group_world_size
        if ranks == 1:
            self.phase = phase
        elif phase is not Phase.JOINING or manager._store.add(f"{self._key}/ready", 1) == ranks:
            manager._store.set(f"{self._key}/{phase.name}", str(manager._step + 2 if at is None else at))

    def follow(self, manager: Any) -> None:
        """Enter the phase that the group's ranks have agreed on, once its step has come."""
        for phase in (Phase.BLOCKING, Phase.ANEW, Phase.JOINING) if manager._group_world_size > 1 else ():
            key = f"{self._key}/{phase.name}"
            if manager._store.check([key]) and int(manager._store.get(key)) <= manager._step:
                self.phase = phase
                return

    def close(self) -> None:
        """Let the donor forget its copy."""
        self._opened.close()


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy in host memory, of a sharded tensor this rank's part; it is complete when the device has ended."""
    part = local(tensor.detach())
    copy = torch.empty(part.shape, dtype=part.dtype, pin_memory=part.device.type == "cuda")
    return copy.copy_(part, non_blocking=True)


def hyperparameters(optim: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Return those of each group of an optimizer."""
    groups = ({key: value for key, value in group.items() if key != "params"} for group in optim.param_groups)
    return [
        {key: one.clone() if isinstance(one, torch.Tensor) else one for key, one in group.items()} for group in groups
    ]


def set_hyperparameters(optim: torch.optim.Optimizer, groups: list[dict[str, Any]]) -> None:
    """Set those of each group of an optimizer."""
    for group, values in zip(optim.param_groups, groups, strict=True):
        group.update(values)
