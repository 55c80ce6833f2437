"""What toy.py and light.py share: the rank, the arguments, the ways to fail, and the file of the steps."""

import argparse
import json
import os
import signal
import subprocess
import sys
import time

GROUP, RANK, WORLD_SIZE = (int(os.environ[name]) for name in ("REPLICA_GROUP_ID", "RANK", "WORLD_SIZE"))
ATTEMPT = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=50)
parser.add_argument("--step-time", type=float, default=0.02, help="seconds to sleep in each step")
parser.add_argument("--slow-group", type=int, help="its steps take 1.4 times as long")
parser.add_argument("--slow-node", help="the steps of a group that runs there do")
parser.add_argument("--timeout", type=float, default=10, help="seconds that torchft waits for a peer")
parser.add_argument("--pause", type=float, default=0, help="seconds to sleep between two steps, as data loading does")
parser.add_argument("--layers", type=int, default=0, help="more of them, each with two tensors to average")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--fail-at", type=int, help="fail in this step, between quorum and allreduce")
parser.add_argument("--fail-group", type=int, default=0)
parser.add_argument("--fail-rank", type=int, default=0)
parser.add_argument("--fail-attempt", type=int, default=0)
parser.add_argument("--fail-how", choices=["exit0", "exit3", "kill9", "raise", "segv", "hang", "ecc"], default="exit3")
parser.add_argument("--children", type=int, default=0, help="how many to leave behind, one in its own session")
parser.add_argument("--ignore-sigterm", action="store_true")
parser.add_argument("--noise-mb-s", type=float, default=0, help="text to print")
parser.add_argument("--no-resume", action="store_true", help="take no notice of checkpoints")
parser.add_argument("--open-end", action="store_true", help="go on until STEPS_FILE-end says after which step to end")
parser.add_argument("--beside", action="store_true", help="compute while the quorum is sought, torchft's default")
parser.add_argument("--steps-file", help="a JSON line per step this process has committed, in STEPS_FILE-GROUP-RANK")
args = parser.parse_args()


def fail() -> None:
    match args.fail_how:
        case "exit0":
            sys.exit(0)
        case "exit3":
            sys.exit(3)
        case "raise":
            raise RuntimeError(f"told to fail at step {args.fail_at}")
        case "ecc":
            raise RuntimeError("CUDA error: uncorrectable ECC error encountered\nCompile with `TORCH_USE_CUDA_DSA`")
        case "kill9":
            os.kill(os.getpid(), signal.SIGKILL)
        case "segv":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "hang":
            time.sleep(10_000)


def last_step() -> int:
    if not args.open_end:
        return int(args.steps)
    try:
        with open(f"{args.steps_file}-end") as file:
            return int(file.read())
    except FileNotFoundError:
        return sys.maxsize


def fail_if_told(step: int) -> None:
    """Fail if it is this rank's turn, at or after the step it was told."""
    me = (GROUP, RANK, ATTEMPT)
    if args.fail_at is None or step < args.fail_at or me != (args.fail_group, args.fail_rank, args.fail_attempt):
        return
    print(f"failing at step {step}: {args.fail_how}", flush=True)
    fail()


def begin() -> None:
    """Print the process and its children, which are left behind."""
    if args.ignore_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    children = [subprocess.Popen(["sleep", "600"], start_new_session=i == 0) for i in range(args.children)]
    print("pid", os.getpid(), "children", *(child.pid for child in children), flush=True)


def work() -> None:
    """Take the time of a step, and print what was asked for."""
    slow = args.slow_group == GROUP or (args.slow_node and args.slow_node == os.environ.get("SLURMD_NODENAME"))
    time.sleep(args.step_time * (1.4 if slow else 1))
    sys.stdout.write("noise " * int(args.noise_mb_s * args.step_time * 1e6 / 6))


def note(step: int, quorum: int, participants: int, digest: str) -> None:
    """Append a line for a committed step."""
    if not args.steps_file:
        return
    line: dict[str, object] = {"time": time.time(), "group": GROUP, "rank": RANK, "attempt": ATTEMPT, "step": step}
    line |= {"quorum": quorum, "participants": participants, "digest": digest}
    with open(f"{args.steps_file}-{GROUP}-{RANK}", "a") as file:
        file.write(json.dumps(line) + "\n")
