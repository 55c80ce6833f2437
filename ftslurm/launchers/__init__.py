"""How a step starts: as local processes (local.py) or through srun (srun.py). children.py is what both share."""
