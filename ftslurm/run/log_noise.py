"""Known lines of torch, torchft, Gloo and NCCL that tell a reader nothing about the run.

Each pattern was seen in the logs of healthy runs. The line that Python prints below a warning, the source of the call,
belongs to it.
"""

from __future__ import annotations

import re

_LINES = (
    rb"^\[[^\]\n]*- step \d+\] Unable to reset NCCL flight recorder",  # torchft without NCCL
    rb'^\S+ - - \[[^\]\n]*\] "(?:GET|POST) /(?:checkpoint|new_session|v1)[^"\n]*" 200 ',  # torchft serves a heal
    rb"UserWarning: The given buffer is not writable, and PyTorch does not support non-writable",  # torchft heals
    rb"^\[W[^\]\n]*reducer\.cpp:\d+\] Warning: find_unused_parameters=True",  # torchft's DistributedDataParallel
    rb"^\[W[^\]\n]*(?:socket|TCPStore|ProcessGroup|HashStore)\.cpp:\d+\] \[c10d\] The hostname of the client socket",
    rb"^\[Gloo\] Rank \d+ is connected to \d+ peer ranks",
    rb"destroy_process_group\(\) was not called before program exit",
    rb"using GPU \d+ (?:as device used by this process is currently|to perform barrier as devices used by)",
    rb"^\S+:\d+:\d+ \[\d+\] NCCL INFO ",
)
_NOISE = re.compile(b"|".join(_LINES))
_PREFIX = re.compile(rb"^\[rank\d+\]: ?")
_WARNING = re.compile(rb"^\S[^\n]*:\d+: \w*Warning: ")


class NoiseFilter:
    """Tells the known noise of one log from the rest, line by line."""

    def __init__(self) -> None:
        self._warned = False  # the line before was the first of a Python warning that is noise

    def is_noise(self, line: bytes) -> bool:
        """Return whether the next line of the log is known noise."""
        line = _PREFIX.sub(b"", line)
        if self._warned and line.startswith(b"  "):
            self._warned = False
            return True
        noise = _NOISE.search(line) is not None
        self._warned = noise and _WARNING.match(line) is not None
        return noise
