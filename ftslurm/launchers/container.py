"""Build srun's options for a container (pyxis): the image, what is mounted into it, and where the workers begin.

Groups and standbys run in the container. The Lighthouse, probes and the first process of `ftslurm attach` run on the
node itself, with the controller's interpreter: they need nothing of the image, and answer before it is loaded. Workers
import ftslurm from the run's copy of it (code/own_copy.py), because the image need not have ftslurm.
"""

from __future__ import annotations

from pathlib import Path

from ftslurm.config.schema import Config
from ftslurm.config.store_url import is_url
from ftslurm.run.directory import RunDir

OPTION = "--container-image"
_OURS = ("OMP_NUM_THREADS", "TORCHFT_TIMEOUT_SEC", "TORCHFT_QUORUM_TIMEOUT_SEC", "TORCHFT_CONNECT_TIMEOUT_SEC",
         "TORCHFT_QUORUM_RETRIES")  # fmt: skip


def options(config: Config, run: RunDir) -> list[str]:
    """Return the options of srun for a group or a standby; none if the run has no container."""
    cluster = config.cluster
    if cluster.container_image is None:
        return []
    # What the image sets wins over the environment of srun, except for these names.
    names = sorted({*_OURS, *config.job.env, *config.job.secrets})
    return [
        f"{OPTION}={cluster.container_image}",
        f"--container-mounts={','.join(mounts(config, run))}",
        *(
            []
            if any(word.startswith("--container-workdir") for word in cluster.srun)
            else [f"--container-workdir={Path.cwd()}"]
        ),
        f"--container-env={','.join(names)}",
    ]


def mounts(config: Config, run: RunDir) -> list[str]:
    """Return what is mounted, as SOURCE:TARGET[:FLAGS]: the user's, what the run needs at its own path.

    Later ones are mounted over earlier ones.
    """
    theirs = [mount if ":" in mount else f"{mount}:{mount}" for mount in config.cluster.container_mounts]
    ours = sorted({str(path) for path in (run.root, *folders(config))} - {"/"})
    return [*theirs, *(f"{path}:{path}" for path in ours)]


def folders(config: Config) -> list[Path]:
    """Return the folders beside the run directory that workers need at the same path as outside."""
    script, checkpoints = config.job.script, config.checkpoint.dir
    return [
        Path.cwd(),
        *([Path(script).parent] if script else []),
        *([Path(checkpoints)] if checkpoints and not is_url(checkpoints) else []),
    ]
