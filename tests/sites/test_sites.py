"""Sites as they are: on each, `doctor` and `plan` say what they must, what cannot be is refused, and a group that is
killed comes back. README.md tells how to add one."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cluster import NO_ACCOUNTING, Cluster
from harness import SCRIPTS, Backend, Run, light, quoted
from omegaconf import OmegaConf

HERE = Path(__file__).parent
ENDLESS: dict[str, object] = {"open-end": True, "step-time": 0.1}
MODES = {"steps": ["cluster=auto"], "array": ["cluster=array", "health.lost_after_s=4"]}
PATIENCE_S = 90.0


@dataclass
class Answer:
    """What a command must say, and with which exit code."""

    words: list[str] = field(default_factory=list)  # more arguments
    code: int = 0
    says: list[str] = field(default_factory=list)
    waits_for: str = ""  # why it does not yet


@dataclass
class Drill:
    """A group of a run is killed and comes back; the run ends well."""

    modes: list[str] = field(default_factory=lambda: ["steps"])
    words: list[str] = field(default_factory=list)
    strike: list[str] = field(
        default_factory=list
    )  # an sbatch that takes group 1 its node (NODE), in place of the kill
    saves: bool = False  # the script saves checkpoints, since all groups go down at once
    ranks: list[str] = field(default_factory=list)  # what the first rank of group 1 says
    waits_for: str = ""


@dataclass
class Site:
    """A site: its Slurm, its user, and what must happen there."""

    what: str
    cluster: dict[str, Any] = field(default_factory=dict)  # of Cluster.start
    conf: str = ""  # lines of slurm.conf
    accounts: list[str] = field(default_factory=list)  # arguments of sacctmgr: the site has slurmdbd
    prepare: list[list[str]] = field(default_factory=list)  # commands of its administrator, once it is up
    needs_root: str = ""  # for what
    ordinary_user: bool = False  # the user is not the one whose daemons these are
    env: dict[str, str] = field(default_factory=dict)
    enter: list[str] = field(default_factory=list)  # what stands before each command: salloc ...
    settings: list[str] = field(default_factory=list)  # what a user has to set
    doctor: Answer | None = field(default_factory=Answer)
    plan: Answer | None = field(default_factory=Answer)
    refused: list[Answer] = field(default_factory=list)
    drill: Drill | None = None
    often: list[str] = field(default_factory=list)  # the parts that are in `make test`, too: asked, steps, array


def load(folder: Path, where: str = "FOLDER") -> Site:
    """Read a site; `where` takes the place of FOLDER."""
    text = (folder / "site.yaml").read_text().replace("FOLDER", where)
    site = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Site), OmegaConf.create(text)))
    assert isinstance(site, Site)
    return site


def cases() -> Iterator[Any]:
    """Yield each site with each of its parts: what is asked there, and the drill in each mode."""
    for folder in sorted(file.parent for file in HERE.glob("*/site.yaml")):
        site = load(folder)
        for part in ["asked", *(site.drill.modes if site.drill else [])]:
            often = part in site.often
            yield pytest.param(folder, part, id=f"{folder.name}-{part}", marks=[] if often else [pytest.mark.nightly])


@pytest.mark.slurm
@pytest.mark.light
@pytest.mark.parametrize(("folder", "part"), list(cases()))
def test_what_must_happen_on_a_site_happens(
    folder: Path,
    part: str,
    new_cluster: Callable[..., Cluster],
    slurm_on: Callable[[Cluster], Backend],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = load(folder)
    if why := cannot_be_built(site):
        pytest.skip(why)
    if site.ordinary_user and not all(path.stat().st_mode & 1 for path in Path(sys.base_prefix).parents):
        monkeypatch.setenv("INTERPRETER", sys.base_prefix)
    cluster = new_cluster(files=folder, extra_conf=site.conf, accounts=site.accounts, **{"nodes": 3} | site.cluster)
    site = load(folder, str(cluster.folder))
    for command in site.prepare:
        cluster.run(command)
    backend = slurm_on(cluster)
    backend.environ |= {"HOME": str(tmp_path)} | site.env
    backend.enter = tuple(site.enter)
    if site.ordinary_user:
        become_ordinary(backend, cluster)
    waiting = [*ask(site, cluster, backend)] if part == "asked" else []
    if part != "asked" and site.drill:
        saving = [f"job.script={quoted(SCRIPTS / 'light_saving.py')}", "checkpoint.every=5"] if site.drill.saves else []
        run = ftslurm(backend, "run", part, *site.settings, *saving, *site.drill.words)
        waiting += attempt("the drill", site.drill.waits_for, lambda: drill(site.drill, cluster, run))
    if waiting:
        pytest.xfail("; ".join(waiting))


def ask(site: Site, cluster: Cluster, backend: Backend) -> Iterator[str]:
    """Check what doctor and plan say, and that what cannot be is refused; yield what is waited for."""
    checks = [("doctor", site.doctor), ("plan", site.plan), *(("run", answer) for answer in site.refused)]
    asked: list[tuple[str, Run, Answer]] = []
    for verb, answer in checks:  # at the same time
        if answer and verb == "doctor":
            asked.append((verb, backend.launch(verb, *answer.words), answer))
        elif answer:
            settings = site.settings if verb == "plan" else []
            asked.append((verb, ftslurm(backend, verb, "steps", *settings, *answer.words), answer))
    for verb, run, answer in asked:
        yield from attempt(f"{verb} {' '.join(answer.words)}", answer.waits_for, lambda r=run, a=answer: says(r, a))


def attempt(what: str, waits_for: str, check: Callable[[], object]) -> list[str]:
    """Call a check. Return its name if it fails and that is waited for; fail if it does not fail any more."""
    try:
        check()
    except (AssertionError, subprocess.TimeoutExpired):
        if not waits_for:
            raise
        return [f"{what} waits for {waits_for}"]
    assert not waits_for, f"{what} does not wait for {waits_for} any more"
    return []


def cannot_be_built(site: Site) -> str:
    """Return why this site cannot be on this machine, "" if it can."""
    if site.accounts and NO_ACCOUNTING:
        return (
            f"{', '.join(NO_ACCOUNTING)} missing (Debian: apt install slurmdbd mariadb-server-core mariadb-client-core)"
        )
    if site.needs_root and os.geteuid():
        return f"only root: {site.needs_root}"
    return ""


def become_ordinary(backend: Backend, cluster: Cluster) -> None:
    """Let a user who may do nothing special run the commands, where the daemons are root's."""
    if os.geteuid():
        return  # Slurm's own user, and no more to it than that
    user = pwd.getpwnam("games")
    for path in (cluster.folder.parent, cluster.folder):
        path.chmod(0o755)
    home = cluster.folder / "home"
    home.mkdir()
    os.chown(home, user.pw_uid, user.pw_gid)
    nobody = ("setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", "--inh-caps=-all", "--")
    words = (f"{cluster.folder}/bin/reach", *nobody)
    trial = subprocess.run([*words, sys.executable, "-c", "import ftslurm"], cwd="/", capture_output=True, text=True)
    if trial.returncode:
        pytest.skip(f"another user of this machine cannot run this ftslurm: {trial.stderr[-200:]}")
    backend.enter = (*words, *backend.enter)
    backend.tmp_path = home
    backend.environ["HOME"] = str(home)


def ftslurm(backend: Backend, verb: str, mode: str, *settings: str) -> Run:
    """Start `ftslurm run` or `plan` as a user of the site does."""
    number = len(backend.runs)
    steps = backend.tmp_path / f"steps{number}"
    given = {setting.partition("=")[0] for setting in settings}
    words = [*MODES[mode], "run.name=toy", f"run.root={quoted(backend.tmp_path / f'runs{number}')}", "follow=true"]
    words += [f"job.script={quoted(SCRIPTS / 'light.py')}", f"job.args.steps-file={quoted(steps)}"]
    words += [f"job.args.{key}={value}" for key, value in ENDLESS.items()]
    words += ["job.snapshot=none", "standby=none", "stop.grace_s=2", "groups.count=2"]
    words += ["groups.mem=500M", "groups.gpus=0", light()]
    return backend.launch(verb, *(word for word in words if word.partition("=")[0] not in given), *settings)


def says(run: Run, answer: Answer) -> None:
    """Check what a command has said, and its exit code."""
    code = run.process.wait(PATIENCE_S)
    assert [words for words in answer.says if words not in run.text] == [], run.text
    assert code == answer.code, run.text
    assert "Traceback" not in run.text
    assert code != 2 or not list(run.root.glob("*")), "it has left a run directory"


def drill(drill: Drill, cluster: Cluster, run: Run) -> None:
    """Kill a group; it comes back, and the run ends well."""
    run.wait_for("step_launched", group=1)
    run.until(lambda: run.process.poll() is not None or all(len(run.steps(g)) > 3 for g in (0, 1)), "both groups train")
    assert run.process.poll() is None, run.text
    if drill.saves:
        run.wait_for("checkpoint_saved")
    for words in drill.ranks:
        assert words in run.rank_log(1)
    if drill.strike:
        (node,) = run.named("step_launched", group=1)[0]["nodes"]  # type: ignore[misc]
        job = cluster.run([word.replace("NODE", str(node)) for word in drill.strike]).strip()
        asked = ["squeue", "--all", "-h", "--states=all", "-o", "%T", f"--jobs={job}"]
        run.until(lambda: cluster.run(asked).strip() not in ("PENDING", "CONFIGURING"), "the strike has its node")
        since = time.time()
        run.until(lambda: any(e["time"] > since for e in run.named("group_joined", group=1)), "group 1 is back")  # type: ignore[operator]
    else:
        run.kill(1)
        run.wait_until_back(1)
    run.end_soon()
    assert run.process.wait(PATIENCE_S) == 0, run.text
    assert [e["outcome"] for e in run.named("run_finished")] == ["succeeded"]
    run.check_invariants()
    weights = run.weights()
    assert {group for group, _ in weights} == {0, 1}
    assert len(set(weights.values())) == 1
    run.until(lambda: not cluster.run(["squeue", "--all", "-h", "-o", "%i", "--name=toy"]), "its jobs are gone", 30.0)
