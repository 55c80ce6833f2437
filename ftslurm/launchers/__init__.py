"""Start steps, as local processes (local.py) or through srun (srun.py); step_processes.py runs both kinds."""
