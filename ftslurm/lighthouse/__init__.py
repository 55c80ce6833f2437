"""The Lighthouse decides which groups take the next step of training together."""

import os

# Set before the import of grpc, which reads it once. grpc logs what peers send: one connection wrote 1.5 GB in 5 s.
os.environ["GRPC_VERBOSITY"] = "NONE"
