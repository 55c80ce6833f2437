"""NVRx's ft_launcher (nvidia-resiliency-ext) with restarts and checkpoints, on the nodes of one allocation."""

from __future__ import annotations

from typing import ClassVar

from contenders import install
from contenders.torchrun import Torchrun


class Nvrx(Torchrun):
    """ft_launcher on each node: torchrun's way, with a rendezvous and rank monitors of its own."""

    name = "nvrx"
    what = "NVRx's ft_launcher on each node of one allocation; plain ranks, a checkpoint every 25 steps"
    adaptations = (
        *(Torchrun.adaptations[0], Torchrun.adaptations[2]),
        "--ft-enable-nic-monitor=false, and no GPU health checks: this machine has no InfiniBand and no GPU",
        "the ranks send no heartbeats to their monitors: no hang is injected here, and a dead rank is seen without",
        "0.4.1 is the newest version that pip finds for this machine's Python",
    )
    environ: ClassVar[dict[str, str]] = {}

    def missing(self) -> str | None:
        return install.missing("nvrx")

    def versions(self) -> dict[str, str]:
        return install.versions("nvrx", "nvidia-resiliency-ext")

    def launcher(self) -> list[str]:
        launcher = install.python("nvrx").with_name("ft_launcher")
        return [str(launcher), "--ft-enable-nic-monitor=false"]
