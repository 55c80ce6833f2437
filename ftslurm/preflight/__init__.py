"""`ftslurm-preflight`: checks the node that it runs on, for health.preflight. See docs/admin.md."""
