"""The observer: a process beside the controller that reads the journal and tells hooks, callbacks and Prometheus."""
