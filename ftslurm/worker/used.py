"""Notes whether the script has used torchft or torch.distributed: one that used neither may not be a training at all.

Only this process is watched: what the script does in processes of its own is not seen.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

from ftslurm.worker import patch_fit


class Use:
    """Watches for a Manager, a ParameterServer, a session with one, and a process group of torch.distributed."""

    def __init__(self) -> None:
        self.seen: bool | None = None  # None: not known, because the installed torch or torchft cannot be watched

    def install(self) -> None:
        """Start to watch.

        Raises:
            patch_fit.Misfit: this torch or torchft cannot be watched; it is left unchanged.
        """
        manager: Any
        servers: Any
        c10d: Any
        manager, servers, c10d = map(
            importlib.import_module,
            ("torchft.manager", "torchft.parameter_server", "torch.distributed.distributed_c10d"),
        )
        patch_fit.require(manager, "Manager")
        patch_fit.require(servers, "ParameterServer.new_session()")
        patch_fit.require(c10d, "_new_process_group_helper()")  # init_process_group and new_group call it
        manager.Manager.__init__ = self._noting(manager.Manager.__init__)
        servers.ParameterServer.__init__ = self._noting(servers.ParameterServer.__init__)
        session = servers.ParameterServer.__dict__["new_session"].__func__
        servers.ParameterServer.new_session = classmethod(self._noting(session))
        c10d._new_process_group_helper = self._noting(c10d._new_process_group_helper)
        self.seen = False

    def begin(self) -> None:
        """Forget what was seen before the script: a standby's warm-up."""
        self.seen = None if self.seen is None else False

    def _noting(self, original: Any) -> Any:
        @functools.wraps(original)
        def noted(*args: Any, **kwargs: Any) -> Any:
            self.seen = True
            return original(*args, **kwargs)

        return noted
