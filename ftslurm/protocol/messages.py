"""The messages between the controller and its workers: one JSON object per line (design contract 8).

They travel over the step's stdin and stdout, which Slurm authenticates and carries. Shared by both ends, so only the
standard library's lightest modules are imported here. `task` is a task's index in the step; unknown types and fields
are ignored. G: the guard of the worker says or does it, whatever state the worker is in.

Worker to controller, lines of at most LONGEST bytes:

hello {task, host, pid, slurm_step}       G  the worker has been forked
ready {task}                              all is imported; a standby has warmed up
store {task, addr, port}                  rank 0: the group's store is up, at this port of its guard's (worker/gate.py)
alive {task, state, step, stage, since_s} G  local rank 0 of each node, every heartbeat; state is the worker's letter in
                                          /proc; the position (see worker/position.py) is null before the script runs
                                          In a job that a pilot holds also pilot: whether it is there, null: not known
quorum {task, step, quorum_id, participants}   rank 0: the first quorum of this attempt
progress {task, step, ...}                rank 0: see worker/observe.py
serving {task, url}                       rank 0: see worker/serve.py, for this and the next two
served {task, sessions, step}             step may be null
session {task, sessions}
trace {task, text}                        a piece of the end of a traceback; the pieces come in order, before `failed`
failed {task, error, traceback_tail, step, started, oom}   an exception ended the script, or the worker before it
done {task, step}                         the script has ended well
exited {task, code, signal, oom, error}   G  how the process ended. A guard that may be adopted leaves it in a file, too
adopted {task, host, ready, group, attempt, rank, lighthouse, store, begun, floor, step}   G  to a new controller, after
                                          a `hello`: what the one before knew. group to lighthouse are null before the
                                          assignment, floor before the script starts, store but for rank 0, step before
                                          this attempt's first commit. Then address, serving, served, session, done,
                                          failed and exited again, the last of each
dumped {task}                             G  the answer to `dump`, within a second
warning {task, text}                      rank 0: something its user should know
injected {task, fault, error}             G  the answer to `inject`; error says why it could not be done

Controller to worker:

key {key}                                 G  the first line: the run's key, 64 hexadecimal digits; see key.py
ping                                      G  every heartbeat: silence ends a worker
where                                     G  every task answers `alive` at once
assign {group, attempt, lighthouse, script, module, args, ranks, run_id, groups, max_restarts, log_dir, gpus, step,
        fence, role, servers}             who the tasks are. log_dir: where rank-N.log goes, instead of --log-dir. A
                                          standby learns three more: gpus "FIRST:COUNT" or null; step, "group-0003/2",
                                          as which it goes on; fence, a list of steps to be ended on its nodes. role
                                          {name, index, count} or null; servers as in `servers`
store {addr, port}                        begin: the script starts
                                          The worker gets a door of its guard's, and as `public` HOST:PORT/store
lighthouse {url}                          G  it has moved there; see worker/forward.py
servers {urls}                            G  the serving groups' parameter servers are there; "": nowhere for now
dump {by}                                 G  the worker's stacks into its log; `by` is named there
inject {fault, task}                      G  one worker suffers it; see worker/faults.py
broken {quorum}                           this quorum has lost a member; see worker/broken.py
save {step}                               G  a checkpoint of this step or a later one is wanted, at once
stop                                      G  SIGTERM to the scripts
kill                                      G  the end of everything, at once
"""

from __future__ import annotations

import json
from typing import Any

from ftslurm.security.json_text import read_object

Message = dict[str, Any]

# srun passes a task's output on in pieces of 1,024 bytes: longer lines of several tasks get mixed (measured on Slurm
# 22.05: no damaged line in 24,000 of up to 980 bytes from 8 tasks at once, a third of them damaged at 1,100).
LONGEST = 1000
MOST = 1 << 20  # bytes of a line that the controller reads; what is longer is dropped, a message never is
_SHORTENED = ("traceback_tail", "error")


def encode(kind: str, **fields: object) -> bytes:
    """One message to a worker as a line; to a worker a line may be of any length."""
    return json.dumps({"type": kind, **fields}, separators=(",", ":")).encode() + b"\n"


def encode_short(kind: str, **fields: object) -> bytes:
    """One message from a worker as a line of at most LONGEST bytes; long texts lose their beginning."""
    fields = {name: str(text)[-LONGEST:] if name in _SHORTENED and text else text for name, text in fields.items()}
    line = encode(kind, **fields)
    for name in _SHORTENED:
        while len(line) > LONGEST and (text := str(fields.get(name) or "")):
            fields[name] = text[max(1, (len(line) - LONGEST) // 12) :]  # JSON takes up to twelve bytes a character
            line = encode(kind, **fields)
    return line


def encode_pieces(kind: str, text: str, **fields: object) -> list[bytes]:
    """A text in as many messages from a worker as it needs, each with a piece of it in its field `text`."""
    room = LONGEST - len(encode(kind, **fields, text=""))
    pieces, piece, size = [], "", 0
    for sign in text:
        cost = len(json.dumps(sign)) - 2
        if size + cost > room:
            pieces.append(piece)
            piece, size = "", 0
        piece, size = piece + sign, size + cost
    return [encode(kind, **fields, text=part) for part in (*pieces, piece) if part]


def decode(line: bytes) -> Message | None:
    """A line as a message; None if it is none (a library that printed before its output was redirected, say)."""
    message = read_object(line)
    return message if message is not None and isinstance(message.get("type"), str) else None


class Lines:
    """Bytes as they come in, complete lines out."""

    def __init__(self, most: int | None = None) -> None:
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
        if self._most is not None and (self._dropping or len(self._rest) > self._most):
            self._dropping, self._rest = True, b""
        return lines if self._most is None else [line for line in lines if len(line) <= self._most]
