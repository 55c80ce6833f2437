"""Code inside the process of the script: start-up (session.py), and what watches and patches torchft."""
