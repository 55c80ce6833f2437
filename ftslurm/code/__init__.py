"""The code of a run: taken once when the run is submitted, and run from there by every attempt."""
