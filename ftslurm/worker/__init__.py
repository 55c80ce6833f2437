"""Code inside the process of the script: start-up (session.py), and the observers and patches of torchft."""
