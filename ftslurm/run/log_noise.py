"""Known lines of torch, torchft, Gloo, NCCL and srun, and one of ours, that tell a reader nothing about the run.

Each was seen in the logs of healthy runs. Under its fixed words, which are quick to find, stands the pattern.
"""

from __future__ import annotations

import re

_LOGGER = rb"torchft(\.[a-z_.]+|_quorums|_commits|_errors)"
_NOISE = {
    words: re.compile(pattern)
    for words, pattern in {
        # torchft's Manager, whatever stands before its text: formats of logging differ.
        b" - step ": rb"\[\S*/\d+ - step \d+\] (should_commit=True |reconfiguring for |resetting fr recording for "
        rb"|peers need recovery from us |healing required, |fetching checkpoint |applying pending state dict"
        rb"|Loaded state dict|Unable to reset NCCL flight recorder)",
        # Its loggers, where the format names them: "[torchft.manager][INFO]", "INFO:torchft.manager", JSON.
        b"torchft": rb"(?<![\w.])" + _LOGGER + rb"\W{1,9}(level(name)?\W{1,6})?(?i:INFO|DEBUG)\b"
        rb"|\b(?i:INFO|DEBUG)\W{1,9}((name|logger)\W{1,6})?" + _LOGGER + rb"(\W{2}|[]:|\"'])",
        b"fetching checkpoint from http": rb"\bfetching checkpoint from http\S+( took [\d.e-]+s)?$",
        b'] "GET /checkpoint/': rb'^\S+ - - \[[^\]\n]*\] "GET /checkpoint/[^"\n]*" 200 ',  # torchft heals a group
        b'] "GET /new_session': rb'^\S+ - - \[[^\]\n]*\] "GET /new_session[^"\n]*" 200 ',  # parameter server
        b"The given buffer is not writable": rb":\d+: UserWarning: The given buffer is not writable",  # torchft heals
        b"  storage = torch.frombuffer(": rb"^  storage = torch\.frombuffer\($",  # the second line of that
        b"`isinstance(treespec, LeafSpec)` is deprecated": rb"^\S*torch/\S+:\d+: FutureWarning: `isinstance",
        b"  result = unpickler.load()": rb"^  result = unpickler\.load\(\)$",  # the second line of that
        b"find_unused_parameters=True": rb"^\[W[^\]\n]*reducer\.cpp:\d+\] Warning: find_unused_",  # torchft's own DDP
        b"hostname of the client socket": rb"^\[W[^\]\n]*socket\.cpp:\d+\] \[c10d\] The hostname of the client socket",
        b"[Gloo] Rank ": rb"^\[Gloo\] Rank \d+ is connected to \d+ peer ranks",
        b"destroy_process_group() was not called": rb"^\[W[^\]\n]*\.cpp:\d+\] Warning: WARNING: destroy_process_group",
        b"lacks support for cpu binding": rb"^srun: cluster configuration lacks support for cpu binding",
        b" is announced as ": rb"^ftslurm: \S+ is announced as \S+, and has ",
        b" NCCL INFO ": rb"^\S+:\d+:\d+ \[\d+\] NCCL INFO ",
    }.items()
}
_RANK = re.compile(rb"^\[rank\d+\]: ?")


def is_noise(line: bytes) -> bool:
    """Return whether a line of a log is known noise."""
    return any(words in line and pattern.search(_RANK.sub(b"", line)) for words, pattern in _NOISE.items())
