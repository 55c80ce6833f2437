"""One task of a replica group's step in a container whose image has no ftslurm: `python3 .../worker/mounted.py`.

The package is mounted into the container (ftslurm/launchers/container.py); the interpreter, torch and torchft are those
of the image.
"""

import os
import sys

HERE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # the folder with the package
if not getattr(sys.flags, "safe_path", False):
    sys.path.pop(0)  # the folder of this file: its modules must not replace Python's
sys.path.insert(0, HERE)

if __name__ == "__main__":
    from ftslurm.guard import guard

    theirs = os.environ.get("PYTHONPATH")  # of the image
    os.environ["PYTHONPATH"] = f"{HERE}{os.pathsep}{theirs}" if theirs else HERE  # for what the script starts
    guard.main("ftslurm.worker.session")
