"""job=torchtitan: runs torchtitan's own trainer, as `python -m torchtitan.train`, and says why if it cannot run.

torchtitan 0.3.0 imports triton, which only the GPU builds of torch bring, and says of any import that fails that it
"cannot import config_registry"; without a GPU it ends in an AttributeError somewhere inside torch.
"""

from __future__ import annotations

INSTALL = (
    "pip install 'ftslurm[torchtitan]' into the environment of the workers (job.python), beside a GPU build of torch"
)


def main() -> None:
    """Train.

    Raises:
        RuntimeError: it failed, and something that it needs is not here.
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
    """What torchtitan needs and this worker has not, and what to do; None: all is there."""
    import torch

    try:
        import torchtitan.experiments.torchft.trainer  # noqa: F401 all that every training with torchft imports
    except ImportError as error:
        return f"{error}: {INSTALL}"
    if not torch.accelerator.is_available():
        return f"torch {torch.__version__} sees no GPU here, and torchtitan trains on nothing else (groups.gpus)"
    return None


if __name__ == "__main__":
    main()
