"""Record what this machine's Slurm prints to each question of ftslurm: `python tests/helpers/record_slurm.py`.

A throwaway cluster gets jobs in many states; each question of ftslurm/slurm/commands.py is asked, and srun's words are
kept for each way in which a step ends. The answers go to tests/data/slurm/VERSION/NAME.txt: the command, its output,
its exit code. Names and paths of this machine are replaced. It needs the standard library alone, so that it runs in the
root folder of another Debian release, too (tests/versions.py makes such a root).
"""

from __future__ import annotations

import getpass
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from cluster import Cluster, ClusterError, scratch  # noqa: E402

from ftslurm.slurm import commands  # noqa: E402

TREE = "SwitchName=leaf1 Nodes=n[1-2]\nSwitchName=leaf2 Nodes=n[3-4]\nSwitchName=top Switches=leaf[1-2]\n"
# Of `scontrol show config`.
KEPT = re.compile(
    r"(Accounting|Auth|Cluster|Constrain|Disable|GresTypes|Inactive|Job|Kill|Max|MinJobAge|Preempt|PrivateData|"
    r"Proctrack|Resume|Return|SLURM_VERSION|Slurmd|Srun|Suspend|Switch|TaskPlugin|Topology|Configuration|Cgroup)"
)
STEP = ("--overlap", "--mem=0", "--cpu-bind=none", "--kill-on-bad-exit=0", "--wait=0", "--gres=none")


class Recorder:
    """Asks, and writes the answers into a folder."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        folder.mkdir(parents=True, exist_ok=True)

    def ask(self, name: str, command: Sequence[str], keep: re.Pattern[str] | None = None) -> str:
        """Run a command and write its answer; return it."""
        done = subprocess.run(
            command, env=self.cluster.environ(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
        )
        self.write(name, command, done.stdout + done.stderr, done.returncode, keep)
        return done.stdout.strip()

    def write(
        self, name: str, command: Sequence[str], said: str, code: int, keep: re.Pattern[str] | None = None
    ) -> None:
        """Write an answer without what belongs to this machine."""
        lines = said.splitlines()
        said = "\n".join(line for line in lines if keep is None or keep.match(line))
        text = f"$ {shlex.join(command)}\n{said}\nexit code {code}\n"
        (self.folder / f"{name}.txt").write_text(self.clean(text))

    def clean(self, text: str) -> str:
        """Replace names and paths of this machine."""
        host, user, uid = socket.gethostname(), getpass.getuser(), os.getuid()
        text = text.replace(str(self.cluster.folder), "/home/user/cluster").replace(str(ROOT), "/home/user/ftslurm")
        text = re.sub(rf"\b{re.escape(host)}\b|\b{re.escape(host.split('.')[0])}\b", "login1", text)
        text = re.sub(rf"\b{user}\({uid}\)", "user(1000)", text).replace(f"--user={uid}", "--user=1000")
        text = re.sub(rf"(?<![\w/]){user}(?![\w/])", "user", text)
        text = re.sub(r"\bt[0-9]{4,5}\b", "cluster1", text)
        text = re.sub(r"\bOS=.*?(?= RealMemory)", "OS=Linux", text)
        return re.sub(r"(/work|/tmp|/root)\S*", "/home/user", text)

    def batch(self, *options: str, script: str = "exec sleep 600") -> str:
        """Submit a job; return its id."""
        folder = self.cluster.folder
        path = folder / "job.sh"
        path.write_text(f"#!/bin/sh\n{script}\n")
        words = ["sbatch", "--parsable", f"--output={folder}/%j.out", *options, str(path)]
        return self.cluster.run(words).strip()

    def state(self, job: str) -> str:
        """Return the state of a job, or of the tasks of an array."""
        words = ["squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T"]
        return " ".join(sorted(set(self.cluster.run(words).split())))

    def until(self, job: str, *states: str) -> None:
        """Wait until a job is in one of these states."""
        deadline = time.monotonic() + 60
        while (state := self.state(job)) not in states:
            if time.monotonic() > deadline:
                raise SystemExit(f"job {job} is {state}, not {states}")
            time.sleep(0.1)


def jobs(to: Recorder) -> Iterator[tuple[str, str]]:
    """Bring jobs into many states; yield what they show, and the job."""
    mark = "--comment=ftslurm:run-12345678:0"
    running = to.batch("--nodes=1", mark, "--time=10", "--mem=100")
    array = to.batch("--array=0-1", "--nodes=1", mark, "--mem=100")
    to.until(array, "RUNNING")  # each task has its number now
    waiting = to.batch("--nodes=4", "--exclusive", mark, "--dependency=singleton", "--job-name=wait")
    held = to.batch("--hold", mark)
    failed = to.batch(mark, "--mem=100", script="exit 3")
    silent = to.batch("--output=/proc/none/%j.out", mark, "--mem=100")
    cancelled = to.batch(mark, "--mem=100")
    to.until(running, "RUNNING")
    to.until(cancelled, "RUNNING", "PENDING")
    to.cluster.run(["scancel", cancelled])
    to.until(failed, "FAILED")
    to.until(silent, "FAILED")
    to.until(cancelled, "CANCELLED")
    yield from (("running", running), ("array", array), ("pending", waiting), ("held", held), ("failed", failed))
    yield from (("no_output", silent), ("cancelled", cancelled), ("unknown", "999999"))


def questions(to: Recorder) -> None:
    """Ask every question."""
    known = dict(jobs(to))
    for name, job in known.items():
        to.ask(f"job_state-{name}", commands.job_state(job))
    to.ask("queue", commands.queue())
    to.ask("jobs_of_users", commands.jobs_of_users(getpass.getuser()))
    to.ask("job_found", commands.job_found(known["array"]))
    to.ask("job_nodes", commands.job_nodes(known["running"]))
    to.cluster.run(["scontrol", "update", "nodename=n4", "state=drain", "reason=fan broken | see ticket 7"])
    to.ask("node_states", commands.NODE_STATES)
    to.ask("node_records", commands.node_records(["n4"]))
    to.ask("node_records-unknown", commands.node_records(["n99"]))
    to.ask("settings", commands.SETTINGS, KEPT)
    to.ask("partitions", commands.PARTITIONS)
    to.ask("partition_records", commands.records("partition"))
    begin = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + 86400))
    wanted = [
        f"starttime={begin}",
        "duration=60",
        "nodes=n[1-2]",
        "flags=maint,ignore_jobs",
        f"users={getpass.getuser()}",
    ]
    to.cluster.run(["scontrol", "create", "reservation", "reservationname=upgrade", *wanted])
    to.ask("reservations", commands.records("reservation"))
    to.ask("job_record-no_output", ["scontrol", "--oneliner", "show", "job", known["no_output"]])
    to.ask("offers", commands.OFFERS)
    to.ask("version", ["sbatch", "--version"])
    to.ask("topology", commands.TOPOLOGY)
    script = to.cluster.folder / "job.sh"
    to.ask("try_submission", commands.try_submission(str(script)))
    to.ask("try_submission-refused", ["sbatch", "--test-only", "--nodes=99", str(script)])
    to.ask("submit", commands.submit(str(script)))
    to.ask("submit-in_words", ["sbatch", str(script)])
    to.ask("submit-refused", ["sbatch", "--parsable", "--partition=nowhere", str(script)])


def steps(to: Recorder) -> None:
    """Record what srun says of each way in which a step ends."""
    job = to.batch("--nodes=2", "--no-kill", "--mem=100")
    to.until(job, "RUNNING")

    def srun(name: str, script: str, *options: str) -> subprocess.Popen[str]:
        words = ["srun", f"--jobid={job}", *STEP, *(options or ("--nodes=2", "--ntasks=2")), "sh", "-c", script]
        return subprocess.Popen(
            words, env=to.cluster.environ(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True,
        )  # fmt: skip

    def ended(name: str, process: subprocess.Popen[str]) -> None:
        said, _ = process.communicate(timeout=60)
        to.write(f"srun-{name}", ["srun", "..."], said, process.returncode)

    ended("exit_code", srun("exit_code", "exit 3"))
    ended("killed", srun("killed", "[ $SLURM_PROCID = 1 ] || kill -9 $$"))
    ended("segfault", srun("segfault", "kill -11 $$"))
    ended("no_program", srun("no_program", "exec /nowhere/program"))
    ended("refused", srun("refused", "true", "--nodes=2", "--ntasks=2", "--nodelist=n99"))
    cancelled = srun("cancelled", "sleep 60")
    wait_for_step(to, job)
    to.cluster.run(["scancel", f"{job}.{newest_step(to, job)}"])
    ended("cancelled", cancelled)
    cancelled = srun("cancelled_job", "sleep 60")
    wait_for_step(to, job)
    first, second = sorted(expanded(to, job))
    to.cluster.run(["scontrol", "update", f"nodename={second}", "state=down", "reason=test"])
    ended("node_failure", cancelled)
    with suppress(ClusterError):  # it may be back already
        to.cluster.run(["scontrol", "update", f"nodename={second}", "state=resume"])
    cancelled = srun("cancelled_job", "sleep 60", "--nodes=1", "--ntasks=1", f"--nodelist={first}")
    wait_for_step(to, job)
    to.cluster.run(["scancel", job])
    ended("cancelled_job", cancelled)


def expanded(to: Recorder, job: str) -> list[str]:
    """Return the nodes of a job."""
    shown = to.cluster.run(["squeue", "--noheader", f"--jobs={job}", "--format=%N"]).strip()
    return to.cluster.run(["scontrol", "show", "hostnames", shown]).split()


def newest_step(to: Recorder, job: str) -> str:
    """Return the number of the newest step of a job; "" if it has none."""
    shown = to.cluster.run(["squeue", "--noheader", "--steps", f"--jobs={job}", "--format=%i"]).split()
    numbers = [word.partition(".")[2] for word in shown]
    return max((number for number in numbers if number.isdecimal()), key=int, default="")


def wait_for_step(to: Recorder, job: str) -> None:
    """Wait until a step of the job runs."""
    deadline = time.monotonic() + 60
    while not newest_step(to, job):
        if time.monotonic() > deadline:
            raise SystemExit(f"no step of job {job}")
        time.sleep(0.1)
    time.sleep(0.5)


def main() -> None:
    """Record on this machine's Slurm."""
    with scratch() as folder:
        cluster = Cluster.start(folder / "a", nodes=4, topology=TREE)
        try:
            version = cluster.run(["sbatch", "--version"]).split()[1]
            to = Recorder(cluster, ROOT / "tests/data/slurm" / ".".join(version.split(".")[:2]))
            steps(to)
            questions(to)
        finally:
            cluster.stop()
    print(f"{len(list(to.folder.iterdir()))} answers of Slurm {version} are in {to.folder}")


if __name__ == "__main__":
    main()
