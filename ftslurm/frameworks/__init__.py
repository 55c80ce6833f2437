"""Fault tolerance for frameworks, a module for each. A script imports the module of its own: docs/fault-tolerant.md."""
