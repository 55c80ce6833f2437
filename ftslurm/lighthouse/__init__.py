"""The Lighthouse: what decides which groups take the next step together."""

import os

# Before grpc is imported, which reads it once. It logs what peers send it: one connection wrote 1.5 GB in 5 s.
os.environ["GRPC_VERBOSITY"] = "NONE"
