"""The messages of the control channel between the controller and its steps: one type for each, one JSON object a line.

The lines travel over the stdin and stdout of a step, which Slurm authenticates and carries. `encode` makes a line,
`parse` and `decode` read one: what is no message, or is of an unknown type, is None; unknown fields are ignored; a
field that is missing, or outside of its bounds, raises BadMessage.

docs/channel.py makes a page of the types below.

The guard of every worker imports this, so only light modules may be imported here.
"""

import dataclasses
import json
from dataclasses import field
from types import NoneType
from typing import Any, ClassVar, NamedTuple, TypeAlias, TypeVar, get_args, get_origin

from ftslurm.protocol.field_types import (
    AnyCount,
    AnySeconds,
    AnyStage,
    AnyText,
    Check,
    Count,
    ExitStatus,
    Key,
    Lenient,
    Multiline,
    Node,
    Plain,
    Port,
    ProcessState,
    QuorumId,
    SecondsOrZero,
    SignalNumber,
    SlurmStep,
    StoreAddress,
    Text,
    Truth,
)
from ftslurm.protocol.value_class import Value
from ftslurm.security.json_text import read_object

# srun passes a task's output on in pieces of 1,024 bytes: longer lines of several tasks get mixed (measured on Slurm
# 22.05: no damaged line in 24,000 of up to 980 bytes from 8 tasks at once, a third of them damaged at 1,100).
LONGEST = 1000  # bytes of a line of a worker
MOST = 1 << 24  # bytes of a line that is read; a longer one is dropped, no message is as long

Raw = dict[str, Any]  # an object with a `type`: a message whose fields have not been checked
M = TypeVar("M", bound="Message")


class BadMessage(ValueError):
    """A message of a known type with a field that is missing or must not be used."""


class Message(Value):
    """One message. A field with a default may be missing in a line that is read."""

    kind: ClassVar[str]  # its `type` on the wire
    known: ClassVar[dict[str, Any]]  # the messages of one direction, by `type`

    def __init_subclass__(cls, kind: str = "") -> None:
        cls.kind = kind
        if kind:
            cls.known[kind] = cls
        super().__init_subclass__()

    @classmethod
    def decode(cls: type[M], raw: Raw | None) -> M | None:
        """The message; None: it is none, or of an unknown type.

        Raises:
            BadMessage: a field is missing or is outside of its bounds.
        """
        kind = None if raw is None else cls.known.get(raw["type"])
        return None if kind is None or raw is None else _read(kind, raw)


class Report(Message):
    """A message of one task of a step to the controller."""

    known: ClassVar[dict[str, Any]] = {}
    task: Count = field(default=0, kw_only=True)  # the index in the step; `encode` fills it in


class LighthouseReport(Report):
    """A message that only the Lighthouse sends."""


class Order(Message):
    """A message of the controller to the tasks of a step."""

    known: ClassVar[dict[str, Any]] = {}


# --- from workers and their guards ------------------------------------------------------------------------------------


class Hello(Report, kind="hello"):
    """Guard: the worker has been forked."""

    host: Node
    pid: AnyCount
    slurm_step: SlurmStep = None


class NodeCheck(Report, kind="node_check"):
    """Local rank 0, before it imports anything: the result of health.preflight on its node; `error`: it has failed."""

    node: Node
    seconds: SecondsOrZero
    log: AnyText  # the output, relative to the run directory
    error: Text | None = None
    unstarted: Truth = False  # it has failed because the node cannot run the command


class Ready(Report, kind="ready"):
    """All is imported. A standby has warmed up. torchft: its version."""

    torchft: Text = ""


class StoreUp(Report, kind="store"):
    """Local rank 0 of each node: other nodes reach its guard at this port (guard/admission.py).

    Rank 0's leads to the group's TCPStore.
    """

    addr: Text
    port: Port


class Alive(Report, kind="alive"):
    """Guard of local rank 0 of each node, every heartbeat: the worker's process and where its training is.

    step, stage and since_s are null before the script runs.
    """

    state: ProcessState
    step: AnyCount
    stage: AnyStage
    since_s: AnySeconds


class Room(Report, kind="room"):
    """Guard of local rank 0 of each node, once, after the first committed step: the memory that is left there, in MiB.

    `available_mb` is what processes can still take: the node's MemAvailable, or less where a memory cgroup ends before.
    `worker_mb` is the private memory that the worker had when all was imported.
    """

    available_mb: Count
    worker_mb: Count


class FirstQuorum(Report, kind="quorum"):
    """Rank 0: this attempt is in a quorum for the first time."""


class Progress(Report, kind="progress"):
    """Rank 0: torchft has committed or aborted steps; sampled (worker/progress.py)."""

    step: Count
    quorum_id: QuorumId
    participants: Count
    committed: Count
    aborted: Count
    gap_s: AnySeconds
    own_s: AnySeconds = None
    step_s: AnySeconds = None


class Digest(Report, kind="digest"):
    """What a rank's weights and optimizer are after a step, in 64 bits (worker/digest.py)."""

    step: Count
    rank: Count
    digest: Text
    buffers: Text = ""  # the same of the buffers that groups evaluate with
    layers: Text = ""  # whose they are, for a person


class Serving(Report, kind="serving"):
    """Rank 0: the script has made a torchft ParameterServer (worker/parameter_sessions.py)."""

    url: Text


class Served(Report, kind="served"):
    """Rank 0: the `step` of the ParameterServer."""

    step: Count


class SessionOpened(Report, kind="session"):
    """Rank 0: the script has got its first session with a ParameterServer."""


class Restored(Report, kind="restored"):
    """Rank 0: a checkpoint has been loaded before the first step."""

    step: Count
    path: AnyText


class Reads(Report, kind="reads"):
    """Rank 0: the script takes its first batch. NAME: the data, in words that are the same in all groups."""

    text: Text


class Healed(Report, kind="healed"):
    """Rank 0: the state of a live group has come."""

    step: Count
    size: Count  # in bytes
    seconds: SecondsOrZero
    donor: AnyText  # its node
    interface: AnyText  # by which it came
    fastest: AnyText  # of the node's interfaces
    gbit: SecondsOrZero  # the speed of that one in Gb/s; 0: unknown


class CanSave(Report, kind="can_save"):
    """Rank 0: the script has a Checkpointer with a folder, so `save` has an effect."""


class Checkpointed(Report, kind="checkpoint"):
    """Rank 0: a checkpoint has been saved; with `error`: it could not be."""

    step: Count
    path: AnyText
    seconds: SecondsOrZero
    error: Text | None


class Notice(Report, kind="warning"):
    """Rank 0, local rank 0 of a node, or a guard: something the user should know."""

    text: Text


class Trace(Report, kind="trace"):
    """A piece of the end of a traceback. All pieces come in order, before `failed`."""

    text: Multiline


class Failed(Report, kind="failed"):
    """An exception has ended the script (`started`), or the worker before it.

    refused: ftslurm has ended it, because no group with the training's state was there to heal from. hardware: as in
    `exited`; a guard through which the message passes adds it.
    """

    error: Text | None
    started: Truth
    oom: Truth = False
    refused: Truth = False
    hardware: Text | None = None


class Done(Report, kind="done"):
    """The script has ended well; the process is about to. Rank 0 waits for `may_leave` first."""


class Exited(Report, kind="exited"):
    """Guard: how the worker's process has ended; `error` is the line of its log that says why.

    hardware: what blames the node's hardware for it, in the kernel log or in the worker's. A worker that the controller
    ends has this message only then: it may have hung because of it. term: the guard has sent or seen SIGTERM. step: the
    Manager's step at the end; null: the script never began.

    A guard of a step that may be adopted also leaves this in a file (guard/connection.py).
    """

    code: ExitStatus | None
    signal: SignalNumber | None
    oom: Truth
    error: Text | None = None
    hardware: Text | None = None
    term: Truth = False
    step: AnyCount = None


class Adopted(Report, kind="adopted"):
    """Guard, to a new controller, after `hello`: what the controller before knew.

    group, attempt and lighthouse are null before the assignment, floor before the script starts, store for all but
    local rank 0, step before the first commit of this attempt. Afterwards address, serving, served, session, done,
    failed and exited come again, the last one of each.
    """

    ready: Truth
    begun: Truth  # its script has been told to start
    group: Count | None
    attempt: AnyCount
    lighthouse: Text | None = None
    store: StoreAddress | None = None
    floor: Count | None = None
    step: Count | None = None
    torchft: Text = ""


class Dumped(Report, kind="dumped"):
    """Guard: the answer to `dump`, within two seconds. size: bytes of stacks in the log; null: there are none."""

    command: Text = ""
    size: AnyCount = None


class Unreached(Report, kind="unreached"):
    """Guard: the answer to `reach`: the nodes where nothing has answered, at most 12 of them."""

    number: Count
    nodes: tuple[Node, ...]


class Injected(Report, kind="injected"):
    """Guard: the answer to `inject`. `error` says why the fault could not be injected."""

    fault: Text
    error: Text | None = None


# --- from the Lighthouse ----------------------------------------------------------------------------------------------


class LighthouseUp(LighthouseReport, kind="address"):
    """The Lighthouse has an address. torchft: its version, if it is torchft's. serves: its predecessor has ended."""

    url: Text
    torchft: Text = ""
    serves: Truth = True


class QuorumRefused(LighthouseReport, kind="refused"):
    """A quorum, or a manager, is refused: see lighthouse/registry.py."""

    reason: Text


class QuorumBroken(LighthouseReport, kind="broken"):
    """A member of this quorum, the last one issued, is gone."""

    quorum_id: Count


class GroupAside(LighthouseReport, kind="aside"):
    """Quorums are formed without this attempt for now (`aside`), because it is silent; or it is heard again.

    seconds: how long its manager has been silent, or was.
    """

    group: Count
    attempt: Count
    aside: Truth
    seconds: SecondsOrZero


# --- to workers and their guards --------------------------------------------------------------------------------------


class RunKey(Order, kind="key"):
    """Guard: the first line, the run's key (security/run_key.py)."""

    key: Key


class Ping(Order, kind="ping"):
    """Guard: every heartbeat. A worker whose controller is silent is ended. No quorum may be below step `reached`."""

    reached: Count = 0


class Where(Order, kind="where"):
    """Guard: every task answers `alive` at once."""


class Rank(Value):
    """Where a rank of the group runs, with torchrun's names."""

    rank: Count
    node: Plain
    local_rank: Count
    node_rank: Count


class Role(Value):
    """The group's role, its place among the groups of that role, and how many those are."""

    name: Plain
    index: Count
    count: Count


class Assign(Order, kind="assign"):
    """Who the tasks are: ranks[task] is the place of a task. Both the guard and the worker read it.

    log_dir: where rank-N.log goes, instead of --log-dir. For a standby there are four more: gpus, its FIRST:COUNT of
    the node's GPUs; bind, what --bind is for other steps; step, such as group-0003/2, the name under which it goes on;
    fence, the steps whose processes it ends on its nodes. servers: as in `servers`.
    """

    group: Count
    attempt: Count
    lighthouse: Plain  # "": the group has none
    script: Plain | None
    module: Plain | None
    args: tuple[Plain, ...]
    ranks: tuple[Rank, ...]
    run_id: Plain
    groups: Count
    max_restarts: Count
    log_dir: Plain | None = None
    gpus: Plain | None = None
    step: Plain | None = None
    fence: tuple[Plain, ...] = ()
    role: Role | None = None
    servers: tuple[Plain, ...] = ()
    bind: Count | None = None


class Begin(Order, kind="store"):
    """The script starts. Workers find the group's store here: the guard puts its own port in, and `public`.

    heals: others hold the training's state, so no checkpoint is needed. floor: the step below which no quorum may be.
    public: HOST:PORT/store, as other groups are told it. history: how many full restarts the run has had.
    """

    addr: Plain
    port: Port
    heals: Truth = False
    floor: Count = 0
    public: Plain = ""
    history: Count = 0


class LighthouseMoved(Order, kind="lighthouse"):
    """Guard: the Lighthouse is at this address now (guard/forwarder.py)."""

    url: Plain


class Servers(Order, kind="servers"):
    """Guard: where the parameter server of each serving group is; "": nowhere for now."""

    urls: tuple[Plain, ...]


class Dump(Order, kind="dump"):
    """Guard: write the stacks of this task's worker, or of all, into its log. command: the user's, if one asks."""

    command: Plain = ""
    task: AnyCount = None


class Inject(Order, kind="inject"):
    """Guard: this task suffers a fault (guard/faults.py)."""

    fault: Plain
    task: Count


class Reach(Order, kind="reach"):
    """Guard: that of local rank 0 dials a port of each of these nodes, and says `unreached`. number: of the round."""

    number: Count
    nodes: tuple[Plain, ...]
    ports: tuple[StoreAddress, ...]


Request: TypeAlias = Dump | Inject  # orders that each guard answers once


class Broken(Order, kind="broken"):
    """This quorum has lost a member: workers need not wait for it (worker/quorum_abort.py)."""

    quorum: QuorumId


class Save(Order, kind="save"):
    """A checkpoint of this step or a later one is wanted at once."""

    step: Count


class MayLeave(Order, kind="may_leave"):
    """Guard: the scripts of all tasks have ended. The worker of rank 0, which hosts the group's store, may end."""


class Stop(Order, kind="stop"):
    """Guard: SIGTERM to the script."""


class Kill(Order, kind="kill"):
    """Guard: end everything at once."""


# --- to the Lighthouse ------------------------------------------------------------------------------------------------


class Member(Order, kind="member"):
    """The manager with this store is an attempt of the run."""

    group: Count
    attempt: Count
    store: Plain


class Evict(Order, kind="evict"):
    """This attempt is over: its manager gets no quorum any more.

    finished: the group has succeeded, so it is not missed: quorums may have one member less than groups.min.
    """

    group: Count
    attempt: Count
    store: Plain | None = None
    finished: Truth = False


class NewHistory(Order, kind="new_history"):
    """All groups start over: no group needs to hold a step above this one."""

    step: Count


def parse(line: bytes) -> Raw | None:
    """A line as an object with a type; None if it is none: a library printed before its output was redirected, say."""
    raw = read_object(line)
    return raw if raw is not None and isinstance(raw.get("type"), str) else None


def encode(order: Order) -> bytes:
    """A message of the controller as a line, which may be of any length."""
    return _line(order.kind, vars(order))


def encode_report(report: Report, task: int) -> bytes:
    """A message of a task as a line of at most LONGEST bytes; a long `error` loses its beginning."""
    fields = {**vars(report), "task": task}
    if error := fields.get("error"):
        fields["error"] = error[-LONGEST:]
    line = _line(report.kind, fields)
    while len(line) > LONGEST and (error := fields.get("error")):
        fields["error"] = error[max(1, (len(line) - LONGEST) // 12) :]  # JSON takes up to twelve bytes a character
        line = _line(report.kind, fields)
    return line


def encode_trace(text: str, task: int) -> list[bytes]:
    """A text as the lines of as many `trace` messages as it needs."""
    line, half = encode_report(Trace(text), task), len(text) // 2
    if len(line) <= LONGEST:
        return [line] if text else []
    return encode_trace(text[:half], task) + encode_trace(text[half:], task)


class Lines:
    """Bytes as they come in, complete lines out."""

    def __init__(self, most: int = MOST) -> None:
        """Begin. most: drop lines with more bytes than this, so that one without an end fills no memory."""
        self._rest = b""
        self._most = most
        self._dropping = False  # until the next newline

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that `data` completes, without their newline."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if lines and self._dropping:
            self._dropping = False
            del lines[0]
        if self._dropping or len(self._rest) > self._most:
            self._dropping, self._rest = True, b""
        return [line for line in lines if len(line) <= self._most]


# --- how fields are read ----------------------------------------------------------------------------------------------


def _line(kind: str, fields: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, **fields}, separators=(",", ":"), default=vars).encode() + b"\n"


class _Plan(NamedTuple):
    """How a type is read."""

    checks: dict[str, Check | Lenient]  # of each field
    defaults: dict[str, object]  # of the fields that may be missing


_plans: dict[type, _Plan] = {}


def plan(kind: type[Value]) -> _Plan:
    """How a type is read; worked out when it is first used."""
    if kind not in _plans:
        fields: Any = dataclasses.fields(kind)  # type: ignore[arg-type]  # a dataclass, by __init_subclass__
        defaults = {f.name: f.default for f in fields if f.default is not dataclasses.MISSING and f.name != "task"}
        _plans[kind] = _Plan({f.name: check_of(f.type) for f in fields}, defaults)
    return _plans[kind]


def check_of(annotation: Any) -> Check | Lenient:
    """How a field with this annotation is read."""
    if hasattr(annotation, "__metadata__"):
        found: Check | Lenient = annotation.__metadata__[0]
        return found
    if get_origin(annotation) is tuple:
        return _each(check_of(get_args(annotation)[0]))
    if isinstance(annotation, type) and issubclass(annotation, Value):
        return Check(f"an object: {', '.join(plan(annotation).checks)}", lambda value: _read(annotation, value))
    (item,) = (check_of(part) for part in get_args(annotation) if part is not NoneType)
    return Check(f"{item.meaning}, or null", lambda value: None if value is None else item.read(value))


def _each(item: Check | Lenient) -> Check:
    def read(value: object) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise ValueError("not a list")
        return tuple(map(item.read, value))

    return Check(f"a list, each {item.meaning}", read)


def _read(kind: type[Value], raw: object) -> Any:
    """The fields of a message, or of a value in one.

    Raises:
        BadMessage: it names the field.
    """
    if not isinstance(raw, dict):
        raise BadMessage("not an object")
    (checks, defaults), fields = plan(kind), {}
    for name, check in checks.items():
        if name in raw:
            try:
                fields[name] = check.read(raw[name])
            except ValueError as error:
                if not isinstance(check, Lenient):
                    raise BadMessage(f"{name}: {error}") from None
                fields[name] = check.fallback
        elif isinstance(check, Lenient):
            fields[name] = check.fallback
        elif name not in defaults:
            raise BadMessage(f"{name} is missing")
    return kind(**fields)
