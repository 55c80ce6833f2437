"""`ftslurm doctor`: looks for what will hurt a training on this cluster, before it does."""
