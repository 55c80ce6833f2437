"""What of ftslurm works on the GPUs of this machine? It needs no network and no Slurm, and at most 20 minutes.

    make gpu-wheels       beforehand, where there is a network: what is missing beside torch, into .wheels/
    make gpu              all checks, into benchmarks/results/gpu.md
    python benchmarks/gpu.py --only healing drill     some of them, printed only

Each check has passed, has failed, or is not possible here, with the reason. Runs are real: `cluster=local`, groups that
share the GPUs that there are, Gloo between them (NCCL refuses two processes on one GPU). Without a GPU all is done on
the CPU that can be, which shows that the kit works.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import torch
from false_alarms import GPUS, campaign, shared_gpus
from harness import Backend, Run
from results import FOLDER

import ftslurm
from ftslurm.guard import gpus, kernel_log
from ftslurm.words import plural
from ftslurm.worker import cpu_binding
from ftslurm.worker.digest import digest

ROOT = Path(__file__).parents[1]
TRAINING = Path(__file__).with_name("gpu_training.py")
GIGABYTES = 4.0 if GPUS else 0.25
HELD = ROOT / "tests" / "scripts" / "example.py"  # an example in which nobody ends before the killed group is back


class NotPossible(Exception):
    """This machine lacks what a check needs."""


@dataclass(frozen=True)
class Found:
    """What came out of a check."""

    check: str
    verdict: str  # passed, failed, not possible here
    seconds: float
    said: str  # a line, or several


# --- runs -------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def run(
    *words: str, groups: int = 2, gpu: int = 1, standby: str = "none", between: str = "gloo", script: Path = TRAINING
) -> Iterator[Run]:
    """Start a run of groups that share the GPUs; stop it at the end, whatever it does."""
    with tempfile.TemporaryDirectory(prefix="ftslurm-gpu-", ignore_cleanup_errors=True) as folder:
        place = Backend("local", shared_gpus(groups * gpu), Path(folder))
        line = ["run", "cluster=local", f"run.root={folder}/runs0", "follow=true", f"groups.count={groups}"]
        line += [f"groups.gpus={gpu if GPUS else 0}", "stop.grace_s=5", "job.snapshot=none"]
        line += [f"job.script={script}", f"standby={standby}", f"torchft.process_group={between}"]
        training = place.launch(*line, *words)
        try:
            yield training
        except BaseException:
            keep(training)
            raise
        finally:
            if training.process.poll() is None:
                training.ask("stop")
                training.process.wait(60)
            training.abandon()


def keep(failed: Run) -> None:
    """Print the end of each log of a run that has failed a check: its folder goes."""
    print(f"--- {failed.text[-3000:]}", file=sys.stderr)
    for path in sorted((failed.dir / "logs").rglob("*.log")):
        print(f"--- {path.relative_to(failed.dir)}\n{path.read_text(errors='replace')[-20000:]}", file=sys.stderr)


def trains(training: Run, *groups: int, attempt: int = 0) -> None:
    for group in groups:
        training.wait_for("group_joined", group=group, attempt=attempt)


def back(training: Run, group: int, attempt: int = 1) -> str:
    """Wait for a group's return; say how long it took, and its longest parts."""
    joined = training.wait_for("group_joined", group=group, attempt=attempt)
    parts = {name: took for name, took in dict(joined["phases"]).items() if took and took >= 0.05}  # type: ignore[call-overload]
    return (
        f"back after {joined['recovery_s']:.2f} s ({', '.join(f'{name} {took:.2f}' for name, took in parts.items())})"
    )


def says(training: Run, pattern: str, group: int, attempt: int = 0) -> re.Match[str]:
    """Wait until a rank's log has such a line."""
    found: list[re.Match[str]] = []

    def there() -> bool:
        found.extend(re.finditer(pattern, training.rank_log(group, 0, attempt)))
        return bool(found)

    training.until(there, f"group {group} says {pattern}")
    return found[0]


def output(*argv: str, code: int | None = 0) -> str:
    """Run a program; return what it printed."""
    done = subprocess.run(argv, capture_output=True, text=True, timeout=180, cwd=ROOT)
    said = (done.stdout + done.stderr).strip().replace(str(ROOT), ".")
    assert code is None or done.returncode == code, f"{' '.join(argv)}: exit code {done.returncode}\n{said}"
    return said


def need(count: int) -> None:
    """Raise NotPossible if there are fewer GPUs."""
    if count > GPUS:
        raise NotPossible(f"it needs {count} GPUs, and there are {GPUS}" if GPUS else "there is no GPU")


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
    digest(state)
    torch.cuda.synchronize()
    began = time.monotonic()
    here = digest(state)
    took, before = time.monotonic() - began, torch.cuda.max_memory_allocated()
    began = time.monotonic()
    sums = [tensor.sum() for tensor in state.values()]
    float(sum(sums[:-1]))
    one_read = time.monotonic() - began
    used = (before - torch.cuda.memory_allocated()) / 2**20
    assert here == digest({name: tensor.cpu() for name, tensor in state.items()}), "they differ"
    return (
        f"{GIGABYTES:g} GB in {took * 1e3:.0f} ms, {used:.0f} MB beside them; one read of them {one_read * 1e3:.1f} ms"
    )


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
            assert "CUDA" in str(ended["error"]), ended
        said += [str(warned["text"])[:300] for warned in training.named("warning")]
        for group in range(3):
            trains(training, group, attempt=1)
        return "\n".join([*said, *map(told, kernel_log.parse(kernel_log.read() or []))])


def nccl(between: str) -> str:
    """NCCL: groups with a GPU each; with one GPU one group, which restarts from its checkpoint."""
    need(1)
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
    on_gpu: dict[int, str] = {}
    if GPUS:
        rows = output("nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader").splitlines()
        on_gpu = {int(pid): used.strip() for pid, used in (row.split(",") for row in rows)}
    lines = []
    for pid in training.processes():
        line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        if "ftslurm.worker" in line or "gpu_training" in line:
            held = re.search(r"^Pss:\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
            mb = int(held[1]) // 1024 if held else 0
            if mb > 100:
                lines.append(f"process {pid}: {mb} MB of memory, {on_gpu.get(pid, 'none')} of the GPU's")
    return sorted(lines)


def healing(*words: str) -> str:
    """A group is killed and gets the state from the other."""
    with run(f"job.args.gigabytes={GIGABYTES}", "restart.backoff_s=0", "torchft.timeout_s=60", *words) as training:
        trains(training, 0, 1)
        training.kill(1)
        said = back(training, 1)
        says(training, "the state of .* GB is whole, on (cuda|cpu)", 1, 1)
        return f"{said}: 'join' is the transfer of {GIGABYTES:g} GB"


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
    work: Callable[[], str]
    beside: bool = False  # nothing is timed that others would disturb: these run side by side, first


CHECKS = (
    Check("preflight", "ftslurm-preflight of the idle machine", preflight),
    Check("doctor", "ftslurm doctor, without Slurm", doctor),
    Check("binding", "the CPUs near each GPU, and what a worker would be bound to", binding),
    Check("kernel log", "the kernel's log is read", kernel),
    Check("digest", "the digest of a state on the GPU is that of the same bits on the CPU", compare),
    Check("cost of digests", "benchmarks/digest.py: a small model, and one of 1 GB", cost),
    Check(
        "warm standby", "a killed group comes back by a warm standby; what each process holds", partial(standby, "each")
    ),
    Check("cold start", "the same without a standby", partial(standby, "none")),
    Check("healing, http", "a killed group gets the state in 8 streams, the default", healing),
    Check("healing, one stream", "as torchft does by default", partial(healing, "job.args.stream=true")),
    Check("healing, process group", "by Gloo", partial(healing, "torchft.transport=process_group")),
    Check("checkpoint", "a state is saved beside the training, and another run goes on with it", checkpoint),
    Check("slow group", "a group whose GPU has four times the work is told", slow),
    Check("tests", "pytest -m gpu", tests, True),
    *(
        Check(
            f"job={kind}",
            "one of two groups is killed and ends with the weights of the other",
            partial(example, kind),
            True,
        )
        for kind in ("ddp", "hsdp", "localsgd", "diloco")
    ),
    Check(
        "silent error",
        "one flipped bit on the GPU is found; that group heals from the others",
        partial(example, "ddp", "health.compare_every=10", group=2, groups=3, drill="corrupt"),
        beside=True,
    ),
    *(
        Check(f"false alarms, {arm}", "groups die and heal, and every step is compared", partial(alarms, arm), True)
        for arm in ("ddp", "localsgd")
    ),
    Check("causes", "what scripts on GPUs die of is named", causes, True),
    Check("NCCL", "groups with a GPU each; one group restarts from its checkpoint", partial(nccl, "nccl"), True),
    Check("baby NCCL", "the same with NCCL in a child process", partial(nccl, "baby-nccl"), True),
    Check("NCCL in a group", "two groups of two workers with a GPU each", inside, True),
)


def done(check: Check) -> Found:
    """Do a check; whatever it raises is what it found."""
    began = time.monotonic()
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
    parser.add_argument("--to", type=Path, default=FOLDER / "gpu.md", help="the page; without a GPU: .gpu/gpu.md")
    args = parser.parse_args()
    if not torch.cuda.is_available() and args.to == FOLDER / "gpu.md":  # what a GPU has shown stays
        args.to = FOLDER.parents[1] / ".gpu/gpu.md"
        args.to.parent.mkdir(exist_ok=True)
    about = machine()
    chosen = [check for check in CHECKS if check.name in (args.only or names)]
    with ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0)) // 2)) as threads:
        found = [*threads.map(done, [check for check in chosen if check.beside])]
    for check in (check for check in chosen if not check.beside):
        found.append(done(check))
        args.to.write_text(page(about, found))
    return int(any(one.verdict == "failed" for one in found))


if __name__ == "__main__":
    sys.exit(main())
