"""What of ftslurm works on the GPUs of this machine? It needs no network and no Slurm.

    make gpu-wheels       beforehand, where there is a network: what is missing beside torch, into .wheels/
    make gpu              all checks that fit into ten minutes, into benchmarks/results/gpu.md
    make gpu ARGS=--rest  those for which there was no time; the page keeps the others
    python benchmarks/gpu.py --only "NCCL, 100 heals" digest      some of them; the page keeps the others
    python benchmarks/gpu.py --gloo --only "NCCL, 100 heals"      without a GPU: Gloo in place of NCCL

The most important checks come first. Each has passed, has failed, is not possible here, or had no time left, and the
page says which. Runs are real: `cluster=local`, groups that share the GPUs that there are. A death that the check has
not planned fails it. Without a GPU all is done on the CPU that can be, which shows that the kit works.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path

import gpu_nccl
import torch
from false_alarms import GPUS, campaign
from gpu_large import graphs, healing, model, saving, stopped_healer
from gpu_runs import DEADLINE, LIMIT_S, ROOT, NotPossible, back, gpu_mb, need, output, run, says, trains
from results import FOLDER, save

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from deaths import Kill, unplanned
from harness import Run

import ftslurm
from ftslurm.guard import gpus, kernel_log
from ftslurm.run.journal import JournalReader
from ftslurm.words import plural
from ftslurm.worker import cpu_binding
from ftslurm.worker.digest import digest

GIGABYTES = 4.0 if GPUS else 0.25
NO_TIME = "no time left"
HELD = ROOT / "tests" / "scripts" / "example.py"  # an example in which nobody ends before the killed group is back


@dataclass(frozen=True)
class Found:
    """What came out of a check."""

    check: str
    verdict: str  # passed, failed, not possible here, no time left
    seconds: float
    said: str  # a line, or several


# --- the checks, in their order ---------------------------------------------------------------------------------------


def preflight() -> str:
    """ftslurm-preflight of the idle machine."""
    return output(str(Path(sys.executable).with_name("ftslurm-preflight")))


def doctor() -> str:
    """ftslurm doctor, without Slurm."""
    return output(sys.executable, "-m", "ftslurm", "doctor", code=None)


def binding() -> str:
    """The CPUs near each GPU, and what a worker would be bound to."""
    need(1)
    there = gpus.known()
    assert len([gpu for gpu in there if gpu.usable]) >= GPUS, there
    lines = [f"{gpu.address} {gpu.device}: near CPUs {sorted(gpu.cpus) or 'unknown'}" for gpu in there]
    _, said = cpu_binding.near(os.sched_getaffinity(0), there, [*there], len(there), 0)
    return "\n".join([*lines, said or "a worker is not bound: all CPUs of this machine are near its GPU"])


def kernel() -> str:
    """The kernel's log, and what it says of GPUs."""
    lines = kernel_log.read()
    if lines is None:
        raise NotPossible("this account may not read /dev/kmsg")
    found = kernel_log.parse(lines)
    return "\n".join([f"{len(lines)} lines, {len(found)} of them errors", *map(told, found[-5:])])


def told(fault: kernel_log.KernelFault) -> str:
    return f"{fault.sign.name}, {fault.sign.meaning}: {fault.text}"


def tests() -> str:
    """The tests marked gpu."""
    need(1)
    files = [str(path) for path in sorted((ROOT / "tests").rglob("test_*.py")) if "mark.gpu" in path.read_text()]
    said = output(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu", *files)
    return said.splitlines()[-1].strip("= ")


def compare() -> str:
    """The digest of a state on the GPU is that of the same bits on the CPU."""
    need(1)
    state = {str(n): torch.randn(int(GIGABYTES * 2**30 / 4 / 64), device="cuda") for n in range(64)}
    state["odd"] = torch.randn(12345, device="cuda", dtype=torch.float16)
    held = torch.cuda.memory_allocated()
    here = digest(state)
    used = (torch.cuda.max_memory_allocated() - held) / 2**20
    took = warm_s(lambda: digest(state))
    one_read = warm_s(lambda: [tensor.sum() for tensor in state.values()])
    assert here == digest({name: tensor.cpu() for name, tensor in state.items()}), "they differ"
    return (
        f"{GIGABYTES:g} GB in {took * 1e3:.1f} ms, {used:.0f} MB beside them; one read of them, a sum, "
        f"{one_read * 1e3:.1f} ms; both warm, the least of 5"
    )


def warm_s(work: Callable[[], object]) -> float:
    """Return the least seconds of some calls on the GPU after one that is not counted."""
    took = []
    for _ in range(6):
        torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        torch.cuda.synchronize()
        took.append(time.perf_counter() - began)
    return min(took[1:])


def example(
    kind: str, *words: str, group: int = 1, groups: int = 2, gpu: int = 1, between: str = "gloo", drill: str = "kill"
) -> str:
    """A group of an example is harmed, comes back, and ends with the weights of the others."""
    line = [f"job={kind}", "job.args.steps=160", f"groups.workers={gpu}", "job.env.KILL='none 0 0 allreduce'"]
    line += [f"job.env.EXAMPLE={ROOT}/examples/train_{kind}.py", 'job.env.HOLD="140"', 'job.env.PACE="0.02"']
    line += [f"faults.plan=[{{kind: {drill}, group: {group}, at: 60}}]"]
    with run(*line, *words, groups=groups, gpu=gpu, between=between, script=HELD) as training:
        said = back(training, group)
        training.finish()
        weights = training.weights()
        assert not GPUS or "cuda:0" in training.rank_log(0), training.rank_log(0)
        assert len(weights) == groups * gpu, weights
        assert len(set(weights.values())) == 1, weights
        found = training.named("replicas_differ")
        assert [one["groups"] for one in found] == ([[group]] if drill == "corrupt" else []), found
        return "".join(f"found at step {one['step']}; " for one in found) + f"{plural(groups, 'group')}; {said}"


def slow() -> str:
    """A group whose GPU has four times the work is told."""
    need(1)
    with run("job.args.products=10", "job.args.slow-group=1", groups=3) as training:
        told = training.wait_for("group_slow", slow=True)
        assert told["group"] == 1, told
        return f"told at step {told['step']}: {told['own_s']} s of its own, the others {told['others_s']} s"


def causes() -> str:
    """What scripts on GPUs die of is named."""
    need(1)
    with run("job.args.fail=[memory,assert,address]", groups=4) as training:
        said = []
        for group in range(3):
            ended = training.wait_for("step_exited", group=group, attempt=0)
            said.append(f"{ended['cause']}: {str(ended['error'])[:180]}")
            causes = frozenset({"out_of_memory"} if group == 0 else {"user_error"})
            training.kills.append(Kill(f"group-{group:04d}", 0, causes, None))
            assert "CUDA" in str(ended["error"]), ended
        said += [str(warned["text"])[:300] for warned in training.named("warning")]
        for group in range(3):
            trains(training, group, attempt=1)
        return "\n".join([*said, *map(told, kernel_log.parse(kernel_log.read() or []))])


def alone() -> str:
    """NCCL in one group that has a GPU for itself: nothing crosses groups."""
    need(1)
    return example("ddp", "checkpoint.every=20", group=0, groups=1, between="nccl")


def apart(between: str) -> str:
    """NCCL between groups with a GPU each."""
    need(2)
    many = min(GPUS, 4)
    return example("ddp", "checkpoint.every=20", group=many - 1, groups=many, between=between)


def inside() -> str:
    """NCCL inside a group of two workers, Gloo between two groups."""
    need(4)
    return example("ddp", gpu=2)


def alarms(arm: str) -> str:
    """No group that is well is said to differ: benchmarks/false_alarms.py, in short."""
    need(1)
    with tempfile.TemporaryDirectory(prefix="ftslurm-gpu-", ignore_cleanup_errors=True) as folder:
        return campaign(arm, 1000, 1, Path(folder))


def cost() -> str:
    """What it costs to compare the groups: benchmarks/digest.py."""
    need(1)
    return output(sys.executable, str(ROOT / "benchmarks" / "digest.py"), "--device=cuda")


def standby(kind: str) -> str:
    """How long a group is away, and what it and a warm standby hold."""
    with run("restart.backoff_s=0", standby=kind) as training:
        trains(training, 0, 1)
        if kind == "each":
            training.until(
                lambda: len([e for e in training.named("step_ready") if "standby" in str(e["unit"])]) >= 2, "standbys"
            )
        time.sleep(2)
        holds = memory(training)
        training.kill(1)
        return "\n".join([back(training, 1), *holds])


def memory(training: Run) -> list[str]:
    """Return a line for each group and standby: memory of its own, and on the GPU."""
    on_gpu = gpu_mb()
    lines = []
    for pid in training.processes():
        line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        if "ftslurm.worker" in line or "gpu_training" in line:
            held = re.search(r"^Pss:\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
            mb = int(held[1]) // 1024 if held else 0
            if mb > 100:
                lines.append(f"process {pid}: {mb} MB of memory, {on_gpu.get(pid, 0)} MB of the GPU")
    return sorted(lines)


def checkpoint() -> str:
    """A state is saved while the training goes on; a run that resumes has it."""
    with run(f"job.args.gigabytes={GIGABYTES}") as training:
        trains(training, 0, 1)
        first = training.dir
        code, said = training.ask("save")
        assert code == 0, said
        (saved,) = training.named("checkpoint_saved")
        waited = says(training, r"the step waited ([\d.]+) s", 0)
        training.ask("stop")
        training.process.wait(60)
        began = time.monotonic()
        ftslurm = [sys.executable, "-m", "ftslurm"]
        resume = [*ftslurm, "resume", str(first), "job.args.zeros=true"]
        with (training.root / "resumed.txt").open("w") as sink:
            second = subprocess.Popen(
                resume, env=training.environ, stdout=sink, stderr=sink, start_new_session=True, text=True
            )
        try:
            again = replace(training, process=second, out=training.root / "resumed.txt")
            again.until(
                lambda: [*again.root.glob("*/logs/group-0000/*/rank-0.log")][1:] or second.poll() is not None, "a log"
            )
            (log,) = (path for path in again.root.glob("*/logs/group-0000/*/rank-0.log") if first not in path.parents)
            again.until(lambda: "is whole" in log.read_text() or second.poll() is not None, "the state is restored")
            took = time.monotonic() - began
            (restored,) = re.findall("^restored .*", log.read_text(), re.MULTILINE)
            assert not (died := unplanned([*JournalReader(log.parents[3] / "events.jsonl").iter_new()])), died
        finally:
            for path in training.root.glob("*/config.yaml"):
                if path.parent != first:
                    output(*ftslurm, "stop", str(path.parent), code=None)
            second.wait(60)
        return (
            f"{GIGABYTES:g} GB saved in {saved['seconds']:.1f} s, the step waited {waited[1]} s; "
            f"{restored}; trains {took:.1f} s after `ftslurm resume`"
        )


@dataclass(frozen=True)
class Check:
    """A check: it says what it has seen, raises NotPossible, or fails with any other error."""

    name: str
    what: str
    about_s: float  # what it takes on one H200 and 16 cores
    work: Callable[[], str]
    beside: bool = False  # nothing is timed that others would disturb: those that follow each other run side by side


IN_A_COLLECTIVE = (("collective", 2, 0), ("before", 1, 0), ("collective", 0, 0))
IN_SET_UP = (
    *(("before", 2, 0), ("set-up", 2, 1), ("connecting", 2, 2)),
    *(("before", 0, 0), ("connecting", 0, 1), ("set-up", 0, 2)),
)
# torch's watchdog leaves the processes alone, and does not sleep 60 s (4 times this) after an error of NCCL.
NO_WATCHDOG = (
    'job.env.TORCH_NCCL_ASYNC_ERROR_HANDLING="0"',
    'job.env.TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC="100"',
)
KILLED = "one of two groups is killed and ends with the weights of the other; Gloo between them"

# In the order of their importance: the time may end.
CHECKS = (
    Check(
        "NCCL, 2 groups",
        "two groups on one GPU average by NCCL: all steps are right in every bit",
        50,
        partial(gpu_nccl.undisturbed, 2),
        True,
    ),
    Check("NCCL, 4 groups", "the same with four groups on one GPU", 60, partial(gpu_nccl.undisturbed, 4), True),
    Check(
        "NCCL, killed in a collective",
        "of three groups each is killed once, in an allreduce or before it; heals over HTTP, weights as undisturbed",
        165,
        partial(gpu_nccl.deaths, 3, IN_A_COLLECTIVE, linger_s=75),
        True,
    ),
    Check(
        "NCCL, killed, watchdog off",
        "the same with the variables that keep torch's watchdog from ending a survivor 60 s later",
        165,
        partial(gpu_nccl.deaths, 3, IN_A_COLLECTIVE, words=NO_WATCHDOG, linger_s=75),
        True,
    ),
    Check(
        "NCCL, killed in set-up",
        "killed like that, and twice more while the communicator is made, also the group that makes its id",
        110,
        partial(gpu_nccl.deaths, 3, IN_SET_UP),
        True,
    ),
    Check(
        "NCCL, heal from GPU to GPU",
        "a group is killed in a collective and healed by NCCL (torchft.transport=process_group)",
        60,
        gpu_nccl.from_gpu_to_gpu,
        True,
    ),
    Check(
        "baby NCCL, killed in a collective",
        "a group is killed; NCCL runs in a child process of each group",
        90,
        partial(gpu_nccl.deaths, 2, [("collective", 1, 0)], kind="baby-nccl"),
        True,
    ),
    Check(
        "NCCL, 100 heals",
        "four groups, one killed after the other; threads, descriptors, memory and GPU memory of the survivor",
        240,
        gpu_nccl.heals,
    ),
    Check("tests", "pytest -m gpu", 34, tests, True),
    Check(
        "false alarms, localsgd",
        "groups die and heal, every step is compared, nobody else dies",
        80,
        partial(alarms, "localsgd"),
        True,
    ),
    Check("false alarms, ddp", "the same with DDP", 55, partial(alarms, "ddp"), True),
    *(Check(f"job={kind}", KILLED, 55, partial(example, kind), True) for kind in ("localsgd", "ddp", "hsdp", "diloco")),
    Check(
        "silent error",
        "one flipped bit on the GPU is found; that group heals from the others",
        35,
        partial(example, "ddp", "health.compare_every=10", group=2, groups=3, drill="corrupt"),
        True,
    ),
    Check("causes", "what scripts on GPUs die of is named", 30, causes, True),
    Check("CUDA graphs", "a graph is captured in every step beside a digest of every step", 30, graphs, True),
    Check("digest", "the digest of a state on the GPU is that of the same bits on the CPU", 8, compare),
    Check("cost of digests", "benchmarks/digest.py: a small model, and one of 1 GB", 12, cost),
    Check(
        "a model of 1B",
        "a step of plain torchft, of ftslurm, and beside a digest; one group, so no transfer is measured",
        150,
        model,
    ),
    Check("healing, http", "a killed group gets 4 GB in 8 streams, the default", 35, partial(healing, 4)),
    Check("healing, 10 GB", "the same with 10 GB", 50, partial(healing, 10)),
    Check("healing, 40 GB", "the same with 40 GB", 130, partial(healing, 40)),
    Check("stopped healer", "a healer that stands still for 20 s (SIGSTOP) in its transfer heals", 60, stopped_healer),
    Check("save of 40 GB", "how long the step waits when a save begins", 70, partial(saving, 40)),
    Check(
        "warm standby",
        "a killed group comes back by a warm standby; what each process holds",
        21,
        partial(standby, "each"),
    ),
    Check("cold start", "the same without a standby", 21, partial(standby, "none")),
    Check("checkpoint", "a state is saved beside the training, and another run goes on with it", 43, checkpoint),
    Check("slow group", "a group whose GPU has four times the work is told", 30, slow),
    Check("preflight", "ftslurm-preflight of the idle machine", 5, preflight),
    Check("doctor", "ftslurm doctor, without Slurm", 8, doctor),
    Check("binding", "the CPUs near each GPU, and what a worker would be bound to", 1, binding),
    Check("kernel log", "the kernel's log is read", 1, kernel),
    Check(
        "NCCL, one group",
        "NCCL is set up for one group alone, which restarts from its checkpoint: no collective crosses groups",
        35,
        alone,
    ),
    Check("healing, one stream", "as torchft does by default", 40, partial(healing, 4, "job.args.stream=true")),
    Check("healing, process group", "by Gloo", 35, partial(healing, 4, "torchft.transport=process_group")),
    Check("healing, 80 GB", "a killed group gets 80 GB", 240, partial(healing, 80)),
    Check("NCCL, a GPU each", "groups with a GPU each; one is killed", 40, partial(apart, "nccl")),
    Check("baby NCCL, a GPU each", "the same with NCCL in a child process", 45, partial(apart, "baby-nccl")),
    Check("NCCL in a group", "two groups of two workers with a GPU each, Gloo between the groups", 40, inside),
)


def in_turn(checks: Sequence[Check], note: Callable[[Found], None]) -> None:
    """Do the checks in their order, and side by side what follows each other and may be."""
    for beside, batch in itertools.groupby(checks, lambda check: check.beside):
        with ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0)) // 2) if beside else 1) as threads:
            for found in threads.map(done, batch):
                note(found)


def done(check: Check) -> Found:
    """Do a check; whatever it raises is what it found. One that would not end in time is left for `--rest`."""
    began = time.monotonic()
    if check.about_s > DEADLINE.left_s():
        return Found(check.name, NO_TIME, 0.0, f"it takes about {check.about_s:.0f} s: `make gpu ARGS=--rest`")
    try:
        verdict, said = "passed", check.work()
    except NotPossible as error:
        verdict, said = "not possible here", str(error)
    except Exception as error:
        traceback.print_exc()
        verdict, said = "failed", f"{type(error).__name__}: {error}"[-1500:]
    found = Found(check.name, verdict, time.monotonic() - began, said)
    print(f"{verdict:18} {check.name} ({found.seconds:.0f} s): {said.splitlines()[0] if said else ''}", flush=True)
    return found


def machine() -> dict[str, str]:
    """Return what this machine is."""
    names = [torch.cuda.get_device_name(n) for n in range(GPUS)]
    return {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "GPUs": ", ".join(f"{len([*same])} × {name}" for name, same in itertools.groupby(names)) or "none",
        "driver": output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").split()[0]
        if GPUS
        else "-",
        "CPU cores": str(len(os.sched_getaffinity(0))),
        "kernel": platform.release(),
        "Python": platform.python_version(),
        "torch": torch.__version__,
        "torchft": version("torchft"),
        "ftslurm": ftslurm.__version__,
    }


def page(about: dict[str, str], found: list[Found]) -> str:
    """Return the Markdown page."""
    lines = [
        "# On GPUs",
        "",
        "`make gpu`: what of ftslurm works on one machine, without a network and without Slurm.",
        "",
        "Groups share the GPUs. In the rows named NCCL each group claims a host of its own (`NCCL_HOSTID`), so NCCL",
        "connects them as it connects nodes: by sockets, on loopback. Their communicators, collectives, aborts and",
        "heals are real; the speed of a network is not shown.",
        "",
    ]
    lines += ["| machine | |", "|---|---|", *(f"| {name} | {value} |" for name, value in about.items())]
    lines += ["", "| check | what it shows | verdict | seconds |", "|---|---|---|---:|"]
    what = {check.name: check.what for check in CHECKS}
    lines += [f"| {one.check} | {what[one.check]} | {one.verdict} | {one.seconds:.0f} |" for one in found]
    for one in found:
        lines += ["", f"## {one.check}: {one.verdict}", "", "```text", one.said, "```"]
    return "\n".join([*lines, ""])


def main() -> int:
    """Do the checks and write the page. The exit code is 1 if one has failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    names = [check.name for check in CHECKS]
    parser.add_argument("--only", nargs="+", choices=names, metavar="CHECK", help=f"of {', '.join(names)}")
    parser.add_argument("--rest", action="store_true", help="only those that the page lacks, or for which was no time")
    parser.add_argument("--minutes", type=float, default=LIMIT_S / 60, help="no check begins that would end later")
    parser.add_argument("--gloo", action="store_true", help="try the checks of NCCL without a GPU: with Gloo")
    parser.add_argument("--to", type=Path, default=FOLDER / "gpu.md", help="the page; without a GPU: .gpu/gpu.md")
    args = parser.parse_args()
    if not torch.cuda.is_available() and args.to == FOLDER / "gpu.md":  # what a GPU has shown stays
        args.to = FOLDER.parents[1] / ".gpu/gpu.md"
        args.to.parent.mkdir(exist_ok=True)
    DEADLINE.at = time.monotonic() + 60 * args.minutes
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the run of a check ends too
    gpu_nccl.GLOO = args.gloo
    about, kept = machine(), args.to.with_suffix(".json")
    found: dict[str, Found] = {}
    if (args.only or args.rest) and kept.exists():
        found = {one["check"]: Found(**one) for one in json.loads(kept.read_text())["found"]}
    over = {name for name, one in found.items() if one.verdict != NO_TIME} if args.rest else set[str]()
    new = list[str]()

    def note(one: Found) -> None:
        found[one.check] = one
        new.append(one.verdict)
        rows = [found[name] for name in names if name in found]
        save(kept, {"machine": about, "found": [asdict(row) for row in rows]})
        args.to.write_text(page(about, rows))

    in_turn([check for check in CHECKS if check.name in set(args.only or names) - over], note)
    return int("failed" in new)


if __name__ == "__main__":
    sys.exit(main())
