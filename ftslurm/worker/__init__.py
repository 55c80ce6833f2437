"""What runs inside a step: a guard that watches one worker (guard.py), and the worker itself (session.py)."""
