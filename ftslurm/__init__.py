"""ftslurm: fault-tolerant PyTorch training on Slurm, one step per torchft replica group."""

__version__ = "0.1.0"
