"""Warns the user of a script that sets variables too late: torch has read them when the worker imported it.

Rank 0 needs torch before the script begins (the group's store), and a standby has imported it long before.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from ftslurm.words import listed

# What torch and its libraries read when they are imported or loaded, of what users set.
_READ = re.compile(
    r"(OMP|MKL|KMP|GOMP|OPENBLAS)_\w+|PYTORCH_JIT\w*|TORCH_(LOGS\w*|D?TRACE|DISTRIBUTED_DEBUG|SHOW_CPP_STACKTRACES"
    r"|CPP_LOG_LEVEL|COMPILE_DEBUG|COMPILE_JOB_ID|CUDA_SANITIZER|DEVICE_BACKEND_AUTOLOAD|USE_RTLD_GLOBAL)"
)


def too_late(before: Mapping[str, str]) -> str:
    """Return what to tell about the variables that were set since, and had been read; empty: there is none."""
    changed = sorted(name for name, value in os.environ.items() if before.get(name) != value)
    late = list(filter(_READ.fullmatch, changed))
    if not late:
        return ""
    return (
        f"the script sets {listed(late)} too late: torch is imported before the script begins, and has read the "
        f"variables then. Set {listed([f'job.env.{name}' for name in late])} instead"
    )
