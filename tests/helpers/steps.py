"""Names for steps: group 0 is A, group 1 is B, and so on; A0 is A's first attempt."""

from ftslurm.core.state.model import StepId

A0, A1, A2, A3 = (StepId("group-0000", attempt) for attempt in range(4))
B0, B1, B2, B3 = (StepId("group-0001", attempt) for attempt in range(4))
C0, C1 = (StepId("group-0002", attempt) for attempt in range(2))
S0, S1, S2 = (StepId("standby-000", attempt) for attempt in range(3))
LIGHT0, LIGHT1, LIGHT2, LIGHT3 = (StepId("lighthouse", attempt) for attempt in range(4))
ANN = "ann"
URL = "http://n1:29510"
