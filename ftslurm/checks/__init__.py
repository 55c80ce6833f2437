"""What is checked before a training: `ftslurm doctor` and `ftslurm-preflight`.

Facts (node_facts.py, slurm_facts.py) become findings in pure functions (*_verdicts.py). See docs/admin.md.
"""
