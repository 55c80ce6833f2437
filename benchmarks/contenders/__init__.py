"""The ways to train on Slurm that goodput.py and recovery.py compare. Each is one file with a Contender in it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))  # cluster.py: the throwaway Slurm
