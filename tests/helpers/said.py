"""Messages of steps as the events that the core gets: `ready(A0, 0)` is task 0 of step A0, which is ready."""

from __future__ import annotations

from ftslurm.core.state.events import Heard
from ftslurm.core.state.model import StepId
from ftslurm.protocol import messages as msg


def hello(step: StepId, task: int, node: str, slurm_step: str | None = None) -> Heard:
    return Heard(step, msg.Hello(node, None, slurm_step, task=task))


def adopted(
    step: StepId,
    task: int = 0,
    ready: bool = False,
    assigned: bool = False,
    begun: bool = False,
    store: tuple[str, int] | None = None,
    lighthouse: str | None = None,
    floor: int | None = 0,
    at: int | None = None,
    torchft: str = "",
) -> Heard:
    group, known = 0 if assigned else None, (store, floor, at, torchft)
    return Heard(step, msg.Adopted(ready, begun, group, None, lighthouse, *known, task=task))


def node_checked(step: StepId, node: str, error: str | None = None, task: int = 0, unstarted: bool = False) -> Heard:
    log = f"logs/preflight-{node}-0.log"
    return Heard(step, msg.NodeCheck(node, 1.0, log, error, unstarted, task=task))


def ready(step: StepId, task: int, torchft: str = "") -> Heard:
    return Heard(step, msg.Ready(torchft, task=task))


def store_up(step: StepId, addr: str, port: int, task: int = 0) -> Heard:
    return Heard(step, msg.StoreUp(addr, port, task=task))


def lighthouse_up(step: StepId, url: str, torchft: str = "") -> Heard:
    return Heard(step, msg.LighthouseUp(url, torchft))


def first_quorum(step: StepId) -> Heard:
    return Heard(step, msg.FirstQuorum())


def room(step: StepId, task: int, available_mb: int, worker_mb: int) -> Heard:
    return Heard(step, msg.Room(available_mb, worker_mb, task=task))


def progressed(
    step: StepId,
    number: int,
    quorum_id: int,
    participants: int,
    committed: int,
    aborted: int,
    gap_s: float | None = None,
    own_s: float | None = None,
    step_s: float | None = None,
) -> Heard:
    return Heard(step, msg.Progress(number, quorum_id, participants, committed, aborted, gap_s, own_s, step_s))


def digested(step: StepId, number: int, digest: str, rank: int = 0, buffers: str = "", layers: str = "") -> Heard:
    return Heard(step, msg.Digest(number, rank, digest, buffers, layers, task=rank))


def serving(step: StepId, url: str) -> Heard:
    return Heard(step, msg.Serving(url))


def served(step: StepId, number: int) -> Heard:
    return Heard(step, msg.Served(number))


def session_opened(step: StepId) -> Heard:
    return Heard(step, msg.SessionOpened())


def traced(step: StepId, task: int, text: str) -> Heard:
    return Heard(step, msg.Trace(text, task=task))


def warned(step: StepId, text: str) -> Heard:
    return Heard(step, msg.Notice(text))


def dumped(step: StepId, task: int) -> Heard:
    return Heard(step, msg.Dumped(task=task))


def stacks_taken(step: StepId, task: int, command: str, size: int | None) -> Heard:
    return Heard(step, msg.Dumped(command, size, task=task))


def inject_refused(step: StepId, task: int, fault: str, error: str) -> Heard:
    return Heard(step, msg.Injected(fault, error, task=task))


def injected(step: StepId, task: int, fault: str) -> Heard:
    return Heard(step, msg.Injected(fault, task=task))


def can_save(step: StepId) -> Heard:
    return Heard(step, msg.CanSave())


def checkpointed(step: StepId, number: int, path: str, seconds: float, error: str | None = None) -> Heard:
    return Heard(step, msg.Checkpointed(number, path, seconds, error))


def restored(step: StepId, number: int, path: str) -> Heard:
    return Heard(step, msg.Restored(number, path))


def script_done(step: StepId, task: int) -> Heard:
    return Heard(step, msg.Done(task=task))


def task_done(step: StepId, task: int, at: int | None = None, term: bool = False) -> Heard:
    return Heard(step, msg.Exited(0, None, False, task=task, step=at, term=term))
