"""Runs torchtitan's own trainer for job=torchtitan, as `python -m torchtitan.train`, and reports why it cannot run.

torchtitan 0.3.0 imports triton, which only the GPU builds of torch include, and reports every failed import as "cannot
import config_registry"; without a GPU it ends in an AttributeError somewhere inside torch.
"""

from __future__ import annotations

INSTALL = (
    "pip install 'ftslurm[torchtitan]' into the environment of the workers (job.python), beside a GPU build of torch"
)


def main() -> None:
    """Run torchtitan's trainer.

    Raises:
        RuntimeError: it failed, and a requirement is missing here.
    """
    try:
        from torchtitan.train import main as train

        train()
    except Exception as error:
        missing = what_is_missing()
        if missing is None:
            raise
        raise RuntimeError(f"job=torchtitan cannot run here: {missing}") from error


def what_is_missing() -> str | None:
    """Return the requirement of torchtitan that this worker lacks, and what to do; None: it lacks none."""
    import torch

    try:
        import torchtitan.experiments.torchft.trainer  # noqa: F401 has the imports of every training with torchft
    except ImportError as error:
        return f"{error}: {INSTALL}"
    if not torch.accelerator.is_available():
        return f"torch {torch.__version__} sees no GPU here, and torchtitan trains on nothing else (groups.gpus)"
    return None


if __name__ == "__main__":
    main()
