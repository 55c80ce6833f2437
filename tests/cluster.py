"""A throwaway Slurm cluster on this machine for tests: a slurmd per node, all on loopback, with fake GPUs.

    with scratch() as folder:
        cluster = Cluster.start(folder / "a", nodes=2)
        print(cluster.run(["srun", "-N2", "printenv", "SLURMD_NODENAME", "CUDA_VISIBLE_DEVICES"]))

By hand, `python tests/cluster.py` opens a shell in such a cluster; `python tests/cluster.py COMMAND...` runs a command.
It needs slurmctld, slurmd and munged (Debian: slurm-wlm and munge), but no configuration and no root.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pwd
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path

SITES = Path(__file__).parent / "sites"  # folders for the argument `files` of Cluster.start
DAEMONS = ("munged", "slurmctld", "slurmd", "slurmscriptd", "slurmdbd", "mariadbd")  # slurmscriptd: slurmctld's child
# An ordinary user's PATH lacks the folders where Debian keeps daemons.
PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"])
MISSING = [name for name in ("munged", "slurmctld", "slurmd", "sbatch", "srun") if not shutil.which(name, path=PATH)]
NO_ACCOUNTING = [name for name in ("slurmdbd", "mariadbd", "mariadb-install-db") if not shutil.which(name, path=PATH)]
OF_SLURM = re.compile("SLURM|(SBATCH|SRUN|SALLOC|SQUEUE|SINFO|SCANCEL|SCONTROL)_")  # variables
NO_HOSTS = [name for name in ("ip", "bridge", "nsenter", "unshare") if not shutil.which(name, path=PATH)]
NO_HOSTS += [] if os.geteuid() == 0 else ["root"]
TC = ("tc", "qdisc")
LOGIN = "n0"  # the host of slurmctld, if the nodes are hosts of their own
PATIENCE_S = 60.0  # a start takes 0.2 s; many times that on an overloaded machine


@cache
def release() -> tuple[int, ...]:
    """Return the installed Slurm's release: (22, 5); () if there is none."""
    program = shutil.which("slurmctld", path=PATH)
    words = subprocess.check_output([program, "-V"], text=True).split() if program else ["", ""]
    return tuple(int(part) for part in words[1].split(".")[:2] if part)


class ClusterError(RuntimeError):
    """A cluster, or a command run in one, did not do what a test needs."""


class Cluster:
    """Nodes n1, n2, ... in the partition `gpu`. All files lie in its folder; `stop` may be called at any time.

    Slurm's ports and the methods `kill_node` and `start_node` are for nodes on this machine, not for `hosts`.
    """

    def __init__(self, folder: Path, nodes: int | Sequence[str], hosts: bool = False) -> None:
        if not re.fullmatch(r"/[\w./-]{1,80}", str(folder)):
            raise ValueError(f"{folder}: slurm.conf and a Unix socket need a short path of letters, digits, - and _")
        folder.mkdir(parents=True)
        self.folder = folder
        self.nodes = [f"n{i}" for i in range(1, nodes + 1)] if isinstance(nodes, int) else list(nodes)
        self.env = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": f"{folder}/bin{os.pathsep}{PATH}"}
        listening = ["slurmctld", "slurmdbd", *self.nodes]
        self._claims = ExitStack()
        self._ports = dict(zip(listening, free_ports(len(listening), self._claims), strict=True))
        self._asleep: set[str] = set()  # their slurmds are started by ResumeProgram
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._unanswered: dict[str, list[socket.socket]] = {}  # what keeps the ports of dark nodes from answering
        self._entered: tuple[str, ...] = ()  # what starts a slurmd, if another program must
        # Hosts of their own (hosts=True) and their addresses; else all nodes are this machine.
        self._addresses = {name: f"10.77.0.{10 + i}" for i, name in enumerate([LOGIN, *self.nodes])} if hosts else {}

    @classmethod
    def start(
        cls,
        folder: Path,
        nodes: int | Sequence[str] = 4,
        gpus: int = 4,
        cpus: int = 4,
        mem_mb: int = 8000,
        *,
        slurmd_timeout: int = 15,
        select: str = "CR_Core_Memory",
        extra_conf: str = "",
        topology: str = "",
        lacks: Path | None = None,
        files: Path | None = None,
        accounts: Sequence[str] = (),
        hosts: bool = False,
    ) -> Cluster:
        """Start a cluster in a new folder; return when every node is idle, or asleep (State=CLOUD).

        Args:
            nodes: how many, or their names.
            extra_conf: lines of slurm.conf. A `Key=Value` line replaces ours, as does that of the partition gpu; the
                words of `NodeName=n1 ...` replace those of ours, those of `NodeName=ALL ...` all. FOLDER: the folder.
            topology: the text of topology.conf, for topology/tree.
            files: a folder whose files are copied beside slurm.conf, with FOLDER replaced; what is in its bin comes
                before Slurm's own programs.
            lacks: a folder that the nodes do not have: they see an empty one there that nobody can write (it takes the
                right to make mounts).
            accounts: arguments of sacctmgr, for a cluster with slurmdbd; USER is who runs this.
            hosts: each node is a host with its own name, address and cable, which `cut` and `apart` break. slurmctld
                and the commands run on one more, n0. It takes the programs of iproute2 and root (NO_HOSTS).
        """
        cluster = cls(folder, nodes, hosts)
        if lacks is not None:
            hide = f'mount -t tmpfs -o ro none "{lacks}"; exec "$@"'
            cluster._entered = ("unshare", "--mount", "sh", "-ec", hide, "sh")
        try:
            if files:
                cluster._copy(files)
            extra = extra_conf.replace("FOLDER", str(folder))
            if topology:
                (folder / "topology.conf").write_text(topology)
                extra += "\nTopologyPlugin=topology/tree"
            if accounts:
                port, kind = cluster._ports["slurmdbd"], "accounting_storage/slurmdbd"
                extra += f"\nAccountingStorageType={kind}\nAccountingStorageHost=127.0.0.1\n"
                extra += f"AccountingStoragePort={port}\nAccountingStoragePass={folder}/munge.sock"
            cluster._write_config(gpus, cpus, mem_mb, slurmd_timeout, select, extra)
            if hosts:
                cluster._connect()
            cluster._start_daemons(accounts)
        except BaseException:
            cluster.stop()
            raise
        return cluster

    def environ(self) -> dict[str, str]:
        """Return this process's environment with this cluster's variables and those of no other Slurm."""
        return {name: value for name, value in os.environ.items() if not OF_SLURM.match(name)} | self.env

    def run(self, command: Sequence[str | Path], *, timeout: float = PATIENCE_S) -> str:
        """Run a command with this cluster's Slurm; return its stdout."""
        ran = subprocess.run(
            [*self.enter(), *command],
            env=self.environ(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        if ran.returncode:
            raise ClusterError(f"{command} exited with {ran.returncode}\n{ran.stdout}{ran.stderr}")
        return ran.stdout

    def states(self) -> dict[str, str]:
        """Return slurmctld's state of every node: idle, mix, alloc, comp, down; with a `*` if it does not answer."""
        with suppress(ClusterError):  # slurmctld does not run yet, or has ended
            return dict(line.split() for line in self.run(["sinfo", "-h", "-N", "-o", "%N %t"]).splitlines())
        return {}

    def processes(self) -> dict[int, str]:
        """Return all processes but the daemons, pid -> name: slurmstepd, tasks and their children, srun."""
        ours = {daemon.pid for daemon in self._daemons.values()}
        return {p: name for p, name in processes_in(self.folder).items() if name not in DAEMONS and p not in ours}

    def enter(self, host: str = LOGIN) -> tuple[str, ...]:
        """Return the words before a command that run it on a host; none if all nodes are this machine."""
        if not self._addresses:
            return ()
        return ("nsenter", f"--target={self._daemons[f'host {host}'].pid}", "--net", "--uts", "--mount")

    def cut(self, node: str) -> None:
        """Cut a host off: nothing comes in or goes out, and no connection closes. Its own end of the cable stays up."""
        self._switch("ip", "link", "set", "dev", node, "nomaster")

    def apart(self, *nodes: str) -> None:
        """Keep hosts apart: they reach all others, but not each other."""
        for node in nodes:
            self._switch("bridge", "link", "set", "dev", node, "isolated", "on")

    def mend(self, *nodes: str) -> None:
        """Undo `cut`, `apart` and `slow`."""
        for node in nodes:
            with suppress(subprocess.CalledProcessError):  # it is not slow
                self.on(node, *TC, "delete", "dev", "eth0", "root")
            self._switch("ip", "link", "set", "dev", node, "master", "hub")
            self._switch("bridge", "link", "set", "dev", node, "isolated", "off")

    @contextmanager
    def one_way(self, source: str, target: str) -> Iterator[None]:
        """Lose what a host sends to another one, until the end of the block."""
        neighbour = ("to", self._addresses[target], "dev", "eth0")
        self.on(source, "ip", "neighbour", "replace", *neighbour, "lladdr", "02:00:00:00:00:01", "nud", "permanent")
        try:
            yield
        finally:
            self.on(source, "ip", "neighbour", "delete", *neighbour)

    @contextmanager
    def another_address(self, host: str) -> Iterator[None]:
        """Give a host another address than its name stands for, until the end of the block."""
        old, new = f"{self._addresses[host]}/24", f"{self._addresses[host]}9/24"
        for address in (new, old):
            self.on(host, "ip", "address", "flush", "dev", "eth0")
            self.on(host, "ip", "address", "add", address, "dev", "eth0")
            if address == new:
                yield

    def slow(self, host: str, rate: str) -> None:
        """Limit what a host sends, as to 1mbit, until `mend`."""
        self.on(host, *TC, "replace", "dev", "eth0", "root", "tbf", "rate", rate, "burst", "64k", "latency", "50ms")

    def on(self, host: str, *command: str) -> None:
        """Run a command on a host."""
        subprocess.run([*self.enter(host), *command], env=self.environ(), check=True, capture_output=True)

    def _switch(self, *command: str) -> None:
        self.on("switch", *command)

    def _connect(self) -> None:
        """Start the hosts, each a process with namespaces of its own, and connect them; all ends with the processes."""
        (self.folder / "hosts").write_text("127.0.0.1 localhost\n")
        with (self.folder / "hosts").open("a") as known:
            known.writelines(f"{address} {host}\n" for host, address in self._addresses.items())
        stay = (
            'hostname "$0"; mount --bind "$1/hosts" /etc/hosts; mount -t sysfs sysfs /sys; '
            'ip link set lo up; touch "$1/up-$0"; exec sleep inf'
        )
        for host in ("switch", *self._addresses):
            namespaces = ("unshare", "--net", "--uts", "--mount")
            self._spawn(f"host {host}", *namespaces, "sh", "-ec", stay, host, str(self.folder))
            self._wait(f"{host} is up", (self.folder / f"up-{host}").exists)
        self._cables("hub", "", "eth0", self._addresses)

    def second_network(self, interface: str, mbit: int) -> None:
        """Connect the nodes by another network, too, whose speed their kernels name."""
        self._cables("fast", "f-", interface, {node: f"10.88.0.{10 + i}" for i, node in enumerate(self.nodes)})
        speed = self.folder / "speed"
        speed.write_text(f"{mbit}\n")
        for node in self.nodes:
            self.on(node, "mount", "--bind", str(speed), f"/sys/class/net/{interface}/speed")

    def _cables(self, hub: str, prefix: str, interface: str, addresses: dict[str, str]) -> None:
        self._switch("ip", "link", "add", "name", hub, "type", "bridge")
        self._switch("ip", "link", "set", "dev", hub, "up")
        for host, address in addresses.items():
            peer = ("peer", "name", interface, "netns", str(self._daemons[f"host {host}"].pid))
            self._switch("ip", "link", "add", "name", f"{prefix}{host}", "type", "veth", *peer)
            self._switch("ip", "link", "set", "dev", f"{prefix}{host}", "master", hub, "up")
            self.on(host, "ip", "address", "add", f"{address}/24", "dev", interface)
            self.on(host, "ip", "link", "set", "dev", interface, "up")

    def limit(self, job: str, left_s: int) -> None:
        """Change a job's time limit so that this time is left, and up to a minute more."""
        shown = self.run(["squeue", "--noheader", f"--jobs={job}", "--Format=TimeUsed:20"]).strip()
        *hours, minutes, seconds = (int(part) for part in shown.split(":"))
        used_s = sum(hours) * 3600 + minutes * 60 + seconds
        self.run(["scontrol", "update", f"jobid={job}", f"timelimit={(used_s + left_s) // 60 + 1}"])

    def kill_node(self, node: str, *, dark: bool = False) -> None:
        """Kill a node's slurmd, slurmstepds and tasks at once, as a power failure does.

        Its connections close, and its slurmd's port refuses new ones; if it is to be `dark`, nothing answers there.
        """
        self._daemons[node].kill()
        for pid in processes_in(self.folder, node):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)  # so that none sees another die
        _kill_all(self.folder, node)
        self._daemons.pop(node).wait()
        if dark:
            self._unanswered[node] = unanswered(self._ports[node])

    @contextmanager
    def vanished_node(self, node: str) -> Iterator[None]:
        """Stop all processes of a node until the end of the block: nothing answers, and no connection closes."""
        stopped = [self._daemons[node].pid, *processes_in(self.folder, node)]
        for pid in stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in stopped:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def slurmd(self, node: str) -> int:
        """Return the process of a node's slurmd."""
        return self._daemons[node].pid

    def start_node(self, node: str) -> None:
        """Start a killed node again and wait until slurmctld hears from it. It is idle unless it has a job."""
        self._answer(node)
        self._spawn(node, *self._entered, "slurmd", "-D", "-N", node, cwd=node)
        self._wait(f"{node} listens", lambda: _listens(self._ports[node]))
        self._wait(f"{node} is up", lambda: self.states().get(node) in ("idle", "mix", "alloc", "comp"))

    @contextmanager
    def without_slurmctld(self) -> Iterator[None]:
        """Stop slurmctld, and start it again at the end of the block."""
        self.stop_slurmctld()
        try:
            yield
        finally:
            self.start_slurmctld()

    def stop_slurmctld(self) -> None:
        """Stop slurmctld: until its start no job starts and no Slurm command is answered. (A kill -9 would lose the
        jobs of the last seconds.)"""
        self._daemons["slurmctld"].terminate()
        self._daemons.pop("slurmctld").wait()

    def start_slurmctld(self) -> None:
        """Start slurmctld again from its saved state."""
        self._spawn("slurmctld", "slurmctld", "-D")
        self._wait("slurmctld listens", lambda: _listens(self._ports["slurmctld"]))

    def clear(self) -> None:
        """End every job, start every lost node again, and wait until all are idle."""
        if jobs := self.run(["squeue", "-h", "-o", "%A"]).split():
            self.run(["scancel", *jobs])
        _kill(self.processes())  # a task that ignores SIGTERM would hold its node for KillWait, an orphan for longer
        for node in set(self.nodes) - set(self._daemons):
            self.start_node(node)
        if unfit := [node for node, state in self.states().items() if state.startswith(("down", "dr"))]:
            self.run(["scontrol", "update", f"nodename={','.join(unfit)}", "state=resume"])
        self._wait("every node is idle", self._all_idle)

    def stop(self) -> None:
        """Kill every daemon and every process of this cluster. Keep the folder with the logs."""
        self._answer(*self._unanswered)
        _kill(daemon.pid for daemon in self._daemons.values())
        _kill_all(self.folder)
        while self._daemons:
            self._daemons.popitem()[1].wait()
        self._claims.close()

    def _answer(self, *nodes: str) -> None:
        for one in [one for node in nodes for one in self._unanswered.pop(node, ())]:
            one.close()

    def log_tails(self, lines: int = 12) -> str:
        """Return the last lines of every daemon's log, or of its stderr if it has no log yet."""
        logs = [log if (log := err.with_suffix(".log")).exists() else err for err in self.folder.glob("log/*.err")]
        tails = [(log, log.read_text(errors="replace").splitlines()[-lines:]) for log in sorted(logs)]
        return "\n".join("\n".join([f"--- {log}", *tail]) for log, tail in tails)

    def _write_config(self, gpus: int, cpus: int, mem_mb: int, slurmd_timeout: int, select: str, extra: str) -> None:
        folder, host = self.folder, socket.gethostname().split(".")[0]
        for name in ("log", "state", "gpus", *self.nodes):
            (folder / name).mkdir()
        (folder / "munge.key").touch(mode=0o600)
        (folder / "munge.key").write_bytes(os.urandom(1024))
        for i in range(gpus):
            (folder / f"gpus/nvidia{i}").symlink_to("/dev/null")  # slurmd insists on a character device
        user = pwd.getpwuid(os.geteuid()).pw_name
        at = self._addresses
        # BatchStartTimeout: a job whose node is lost in its first 20 s, and back at once, would be RUNNING for ever.
        settings = f"""
ClusterName=t{self._ports["slurmctld"]}
SlurmctldHost={LOGIN if at else host}({at.get(LOGIN, "127.0.0.1")})
SlurmctldPort={self._ports["slurmctld"]}
SlurmUser={user}
SlurmdUser={user}
AuthInfo=socket={folder}/munge.sock
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdPidFile={folder}/%n/slurmd.pid
SlurmdLogFile={folder}/log/%n.log
SlurmdSpoolDir={folder}/%n
StateSaveLocation={folder}/state
ProctrackType=proctrack/linuxproc
SelectType=select/cons_tres
SelectTypeParameters={select}
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,bf_interval=1
SlurmdParameters=config_overrides
SlurmdTimeout={slurmd_timeout}
BatchStartTimeout=1
KillWait=5
ReturnToService=2
GresTypes=gpu
""".split()
        more = [line.strip() for line in extra.splitlines()]
        replaced = {line.partition("=")[0].strip().lower() for line in more}
        lines = [line for line in settings if line.partition("=")[0].lower() not in replaced]
        machine = f"CPUs={cpus} RealMemory={mem_mb} Gres=gpu:{gpus}"
        for node in self.nodes:
            where = f"NodeHostname={node} NodeAddr={at[node]}" if at else f"NodeHostname={host} NodeAddr=127.0.0.1"
            words = dict(word.split("=", 1) for word in f"Port={self._ports[node]} {where} {machine}".split())
            for line in more:
                if line.startswith(("NodeName=ALL ", f"NodeName={node} ")):
                    words |= dict(word.split("=", 1) for word in line.split()[1:])
            if words.get("State") == "CLOUD":
                self._asleep.add(node)
            lines.append(" ".join([f"NodeName={node}", *(f"{key}={value}" for key, value in words.items())]))
        if not any(line.startswith("PartitionName=gpu ") for line in more):
            lines.append("PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP")
        lines += [line for line in more if not line.startswith("NodeName=")]
        (folder / "slurm.conf").write_text("\n".join([*lines, ""]))
        gres = f"NodeName={','.join(self.nodes)} Name=gpu File={folder}/gpus/nvidia[0-{gpus - 1}]\n"
        if not (folder / "gres.conf").exists():
            (folder / "gres.conf").write_text(gres if gpus else "")
        # Nothing here uses cgroups, but slurmd looks for them. From 24.05 on this can be disabled; v1 looks least.
        plugin = "disabled" if release() >= (24, 5) else "cgroup/v1"
        (folder / "cgroup.conf").write_text(f"CgroupPlugin={plugin}\n")

    def _copy(self, files: Path) -> None:
        for path in files.rglob("*"):
            target = self.folder / path.relative_to(files)
            target.parent.mkdir(exist_ok=True)
            if path.is_file():
                target.write_text(path.read_text().replace("FOLDER", str(self.folder)))
                target.chmod(0o755 if target.parent.name == "bin" else 0o644)

    def _start_daemons(self, accounts: Sequence[str]) -> None:
        munge, sock = f"{self.folder}/munge", self.folder / "munge.sock"
        files = (f"--socket={sock}", f"--key-file={munge}.key", f"--pid-file={munge}.pid", f"--seed-file={munge}.seed")
        self._spawn("munged", "munged", "--foreground", "--force", "--num-threads=2", *files)
        self._wait("munged made its socket", sock.exists)
        if accounts:
            self._start_accounting(accounts)
        self._spawn("slurmctld", *self.enter(), "slurmctld", "-D")
        self._wait("slurmctld listens", lambda: bool(self._addresses) or _listens(self._ports["slurmctld"]))
        for node in self.nodes:
            if node not in self._asleep:
                self._spawn(node, *self.enter(node), *self._entered, "slurmd", "-D", "-N", node, cwd=node)
        self._wait("every node is idle", self._all_idle)

    def _start_accounting(self, accounts: Sequence[str]) -> None:
        """Start a database that only its own socket leads to, and slurmdbd."""
        folder, user = self.folder, pwd.getpwuid(os.geteuid()).pw_name
        data, sock = f"--datadir={folder}/db", folder / "db.sock"
        root = ("--auth-root-authentication-method=normal", "--skip-test-db", f"--user={user}")
        self.run(["mariadb-install-db", "--no-defaults", data, *root])
        (folder / "slurm.sql").write_text(
            "create database slurm;\ncreate user slurm@localhost;\ngrant all on slurm.* to slurm@localhost;\n"
        )
        small = ("--skip-networking", "--innodb-buffer-pool-size=64M", "--innodb-flush-log-at-trx-commit=2")
        files = (data, f"--socket={sock}", f"--pid-file={folder}/db.pid", f"--init-file={folder}/slurm.sql")
        self._spawn("mariadbd", "mariadbd", "--no-defaults", f"--user={user}", *files, *small)
        self._wait("mariadbd made its socket", sock.exists)
        (folder / "slurmdbd.conf").touch(mode=0o600)
        (folder / "slurmdbd.conf").write_text(f"""
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={self._ports["slurmdbd"]}
SlurmUser={user}
PidFile={folder}/slurmdbd.pid
LogFile={folder}/log/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=slurm
StorageLoc=slurm
""")
        self.env["MYSQL_UNIX_PORT"] = str(sock)
        self._spawn("slurmdbd", "slurmdbd", "-D")
        del self.env["MYSQL_UNIX_PORT"]
        self._wait("slurmdbd listens", lambda: _listens(self._ports["slurmdbd"]))
        for words in accounts:
            self.run(["sacctmgr", "--immediate", *words.replace("USER", user).split()])

    def _spawn(self, name: str, *command: str, cwd: str = "") -> None:
        # In its own session, so that ^C reaches the tests only and they can clean up; in its node's folder, because a
        # slurmstepd erases its environment but keeps its slurmd's folder, which identifies its node.
        where, env = self.folder / cwd, self.environ()
        with (self.folder / f"log/{name}.err").open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                command, cwd=where, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def _all_idle(self) -> bool:
        return self.states() == {node: "idle~" if node in self._asleep else "idle" for node in self.nodes}

    def _wait(self, what: str, check: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not check():
            codes = {name: daemon.poll() for name, daemon in self._daemons.items()}
            died = [f"{name} exited with {code}" for name, code in codes.items() if code is not None]
            if died or time.monotonic() > deadline:
                why = ", ".join(died) or f"not after {PATIENCE_S:.0f} s; the nodes are {self.states() or 'unknown'}"
                raise ClusterError(f"waiting until {what}: {why}\n{self.log_tails()}")
            time.sleep(0.02)


@contextmanager
def scratch() -> Iterator[Path]:
    """Yield a folder for clusters, with a path short enough for a Unix socket; end its processes and remove it after.

    The owner holds a lock on the file `owner`; an unlocked folder is left from a killed session and is removed here.
    """
    for owner in Path("/tmp").glob("fts-*/owner"):
        with suppress(OSError), owner.open() as lock:  # OSError: in use, another user's, or just removed
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if owner.stat().st_uid == os.geteuid():
                _kill_all(owner.parent)
                shutil.rmtree(owner.parent)
    folder = Path(tempfile.mkdtemp(prefix="fts-", dir="/tmp"))
    with (folder / "new").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (folder / "new").rename(folder / "owner")  # locked before others can see it
        try:
            yield folder
        finally:
            _kill_all(folder)
            shutil.rmtree(folder, ignore_errors=True)


def unanswered(port: int) -> list[socket.socket]:
    """Return sockets that keep a port of 127.0.0.1 from answering, until they are closed.

    Linux drops the packets of further connections to a listener whose queue is full.
    """
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(0)
    return [listener, socket.create_connection(listener.getsockname())]


def processes_in(folder: Path, node: str = "") -> dict[int, str]:
    """Return the processes of all clusters below `folder`, or of one node of the cluster in it: pid -> name."""
    seen: dict[int, tuple[str, int]] = {}  # pid -> name, parent
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        with suppress(OSError):  # it has ended meanwhile
            name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(") ")
            if rest[0] not in "ZX" and pid != os.getpid():
                seen[pid] = name, int(rest.split()[1])
    ours = {pid for pid, (name, _) in seen.items() if _belongs(pid, name, folder, node)}
    while children := {pid for pid, (_, parent) in seen.items() if parent in ours} - ours:
        ours |= children  # tasks whose environment was changed
    return {pid: seen[pid][0] for pid in sorted(ours)}


def _belongs(pid: int, name: str, folder: Path, node: str) -> bool:
    with suppress(OSError):  # it has ended meanwhile, or is another user's
        env = b"\0" + Path(f"/proc/{pid}/environ").read_bytes()
        if f"\0SLURM_CONF={folder}/".encode() in env and (not node or f"\0SLURMD_NODENAME={node}\0".encode() in env):
            return True
        return name.startswith("slurm") and f"{os.readlink(f'/proc/{pid}/cwd')}/".startswith(f"{folder / node}/")
    return False


def _kill_all(folder: Path, node: str = "") -> None:
    deadline = time.monotonic() + PATIENCE_S
    while left := processes_in(folder, node):
        if time.monotonic() > deadline:
            raise ClusterError(f"{folder}: these processes survive SIGKILL: {left}")
        _kill(left)
        time.sleep(0.01)


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def free_ports(count: int, claims: ExitStack) -> list[int]:
    """Return free ports below the range that the kernel uses for clients' ports, so that no client gets one.

    No other call gets them, in any process, until `claims` is closed: a daemon may listen later, and again.
    """
    first_of_clients = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports: list[int] = []
    while len(ports) < count:
        port = random.SystemRandom().randrange(10000, max(12000, first_of_clients))
        with ExitStack() as claim, suppress(OSError):
            claim.enter_context(socket.socket(socket.AF_UNIX)).bind(f"\0ftslurm-tests-{port}")
            with socket.socket() as tried:
                tried.bind(("", port))
            claims.push(claim.pop_all())
            ports.append(port)
    return ports


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Run a command, or a shell, in a throwaway Slurm of 4 nodes.")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the command and its arguments")
    told = parser.parse_args().command
    if told and shutil.which(told[0]) is None:
        parser.error(f"there is no program {told[0]}")
    with scratch() as folder:
        command = told or [os.environ.get("SHELL", "/bin/sh")]
        if not told:
            print("a shell in a throwaway Slurm of 4 nodes (try sinfo); `exit` ends the shell and the cluster")
        sys.exit(subprocess.run(command, env=Cluster.start(folder / "c").environ()).returncode)
