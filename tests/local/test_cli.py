"""The command line as a user sees it: bad input is refused in one paragraph, queries leave no trace, runs repeat."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness import all_processes, light
from quick import ftslurm

from ftslurm import __version__
from ftslurm.config.schema import Config
from ftslurm.config.setting_names import every_key
from ftslurm.protocol.run_states import FAULTS

PATIENCE_S = 120.0  # a bound for a hang, not a claim about speed

FILES = {
    "train.py": "",
    "exit.py": "import sys\nsys.exit(int(sys.argv[2]))\n",  # --code N
    "wait.py": "import time\nprint('waiting', flush=True)\ntime.sleep(600)\n",
    # argv, and for every process above this one: its command, whether torch is loaded, its memory in MB
    "look.py": """
import json, os, re, sys
pid, above = os.getppid(), []
while pid > 1:
    stat, maps = open(f"/proc/{pid}/stat").read(), open(f"/proc/{pid}/maps").read()
    rss = int(re.search(r"VmRSS:\\s*(\\d+)", open(f"/proc/{pid}/status").read())[1]) // 1024
    above.append([open(f"/proc/{pid}/cmdline").read().replace("\\0", " "), "libtorch" in maps, rss])
    pid = int(stat.rpartition(")")[2].split()[1])
print("LOOKED " + json.dumps([sys.argv, above]), flush=True)
""",
    "conf/job/mine.yaml": "script: train.py\nargs: {lr: 0.1}\n",
    "conf/job/typo.yaml": "scrpt: train.py\n",
    "conf/job/broken.yaml": "name: [mine\nscript: train.py\n",
    "file": "not a folder\n",
    "no-slurm/": "",
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A working directory like a user's project."""
    for name, text in FILES.items():
        path = tmp_path / name
        (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            path.write_text(text)
    return tmp_path


def alone(*words: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own: one that starts a run, or whose own costs count."""
    command = [sys.executable, "-m", "ftslurm", *words]
    env = os.environ | {"COLUMNS": "200"} | environ
    return subprocess.run(
        command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S
    )


def tree(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*")}


def run_dirs(home: Path) -> list[Path]:
    return sorted(path.parent for path in home.glob("runs/*/config.yaml"))


def events(run: Path, name: str) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == name]


# --- what is refused --------------------------------------------------------------------------------------------------

LOCAL = ("cluster=local", "job.script=train.py")
LIGHT = light()
Case = tuple[tuple[str, ...], list[str]]  # words, and what is said


def each(cases: Sequence[Case], nightly: Sequence[Case]) -> list[Any]:
    """Return a parameter for each case."""
    later = [pytest.param(*case, id=" ".join(case[0]), marks=pytest.mark.nightly) for case in nightly]
    return [*(pytest.param(*case, id=" ".join(case[0])) for case in cases), *later]


REFUSED: list[Case] = [
    (("run", "--count", "4", *LOCAL), ["unrecognized arguments: --count;", "key=value, without dashes"]),
    ((*LOCAL, "--partition=gpu"), ["unrecognized arguments: --partition=gpu;", "key=value"]),
    (("--frobnicate",), ["unrecognized arguments: --frobnicate;", "those of a script follow after --"]),
    ((*LOCAL, "groups.cout=3"), ["there is no setting groups.cout", "did you mean groups.count?"]),
    ((*LOCAL, "frobnicate=3"), ["there is no setting frobnicate", "job.args.frobnicate", "groups", "cluster"]),
    ((*LOCAL, "groups.count=two"), ["groups.count=two"]),
    ((*LOCAL, "-m", "groups.min=1,2,3"), ["groups.min=3 is above groups.count=2"]),
    ((*LOCAL, "job=frobnicate"), ["job=frobnicate", "no such preset", "ddp", "script", "--config-dir"]),
    ((*LOCAL, "job.script=~/train.py"), ["/train.py: no such file that you may read"]),
    ((*LOCAL, "job.module=a.b"), ["job.script and job.module", "both"]),
    (("cluster=local",), ["job.script and job.module", "neither", "job=ddp"]),
    ((*LOCAL, "restart.on_state_loss=checkpoint", "run.root=file/runs"), ["file/runs", "run.root", "Not a directory"]),
    (("--config-dir", "conf", "job=broken", "cluster=local"), ["broken.yaml", "line 2"]),
    (("--config-dir", "gone", "job=mine", "cluster=local"), ["gone", "no such folder"]),
    (("run", *LOCAL[1:], "cluster=slurm"), ["cluster=slurm", "not on PATH", "cluster=local"]),
    (("frobnicate",), ["no verb 'frobnicate'", "run, plan", "status", "logs", "stop", "inject", "--help"]),
    (("status", "gone"), ["no run 'gone'", "/runs/gone"]),
    (("status", "conf"), ["with a config.yaml, at ", "/conf"]),
    ((*LOCAL, "faults.plan=[{kind:kill,group:1}]"), ["faults.plan[0]: `at` is missing, as in"]),
]
# More of the kind, for the nightly tests.
ALSO_REFUSED: list[Case] = [
    ((*LOCAL, "--groups", "4"), ["unrecognized arguments: --groups 4;", "key=value"]),
    ((*LOCAL, "group.count=3"), ["there is no setting group.count", "did you mean groups.count?"]),
    ((*LOCAL, "cluster.gpus=4"), ["there is no setting cluster.gpus", "did you mean groups.gpus?"]),
    ((*LOCAL, "count=3"), ["there is no setting count", "did you mean groups.count?"]),
    ((*LOCAL, "groups={cout: 3}"), ["there is no setting groups.cout", "did you mean groups.count?"]),
    ((*LOCAL, "+groups.cout=3"), ["there is no setting groups.cout", "did you mean groups.count?"]),
    ((*LOCAL, "++groups.cout=3"), ["there is no setting groups.cout", "did you mean groups.count?"]),
    ((*LOCAL, "+frobnicate=3"), ["there is no setting frobnicate"]),
    ((*LOCAL, "~groups.cout"), ["groups.cout"]),
    ((*LOCAL, "groups.count=1.5"), ["groups.count=1.5"]),
    ((*LOCAL, "groups=2"), ["groups=2"]),
    ((*LOCAL, "groups.min=3"), ["groups.min=3 is above groups.count=2"]),
    ((*LOCAL, "groups.gpus=999"), ["groups.gpus=999", "this machine"]),
    ((*LOCAL, "job=3"), ["job=3"]),
    ((*LOCAL, "=3"), ["=3"]),
    ((*LOCAL, "run.name=a\nb"), ["run.name='a\\nb'"]),
    ((*LOCAL, "groups.count='a\nb'"), ["groups.count=a b"]),
    ((*LOCAL, "run.name=${nope}"), ["nope"]),
    (("cluster=local", "job.script=conf"), ["job.script=", "conf", "is a folder"]),
    (
        (*LOCAL, "restart.on_state_loss=checkpoint", "run.root=file/runs", "-m", "groups.min=1,2"),
        ["file/runs", "run.root", "Not a directory"],
    ),
    (("logs", "gone"), ["no run 'gone'", "/runs/gone"]),
    (("stop", "gone"), ["no run 'gone'", "/runs/gone"]),
    (("inject", "gone", "kill"), ["no run 'gone'", "/runs/gone"]),
    ((*LOCAL, "standby=many"), ["standby=many", "no such preset", "auto, each, none, one"]),
    ((*LOCAL, "faults.plan=[{kind: meteor, at: 5}]"), ["'meteor' is no fault", "kill"]),
    (
        (*LOCAL, "health.hang_after_s=abc"),
        ["ftslurm: health.hang_after_s=abc: must be a number or auto"],
    ),
    ((*LOCAL, "faults.plan=[{group:1,at:x}]"), ["faults.plan[0].at=x: must be a number"]),
    ((*LOCAL, "faults.plan=[{at: 5},{kind: cancel, at: 5}]"), ["faults: cancel", "this run is local"]),
    (("statsu",), ["no verb 'statsu'; did you mean status?"]),
    ((*LOCAL, "groups=4"), ["groups=4: that is a section of settings: groups.count, groups.min"]),
    ((*LOCAL, "job.args.sync every=2"), ["'job.args.sync every=2' is no setting"]),
    ((*LOCAL, "-m", "groups.cout=1,2"), ["there is no setting groups.cout", "did you mean groups.count?"]),
    ((*LOCAL, "groups.count=1,2"), ["groups.count=1,2", "--multirun"]),
    ((*LOCAL, "groups.count=0"), ["groups.count=0", "at least 1"]),
    ((*LOCAL, "groups.count"), ["'groups.count'", "key=value"]),
    ((*LOCAL, "run.name='a\nb'"), ["run.name='a\\nb'", "letters"]),
    (("cluster=local", "job.script=gone.py"), ["job.script=", "gone.py", "no such file"]),
    ((*LOCAL, "restart.on_state_loss=checkpoint", "run.dir=conf"), ["run.dir=", "exists already"]),
    (("--config-dir", "conf", "job=typo", "cluster=local"), ["job.scrpt", "did you mean job.script?"]),
    (("status",), ["no run under", "/runs"]),
    ((*LOCAL, "standby.imports=numpy"), ["standby.imports=numpy: must be a list", "'standby.imports=[numpy]'"]),
    ((*LOCAL, "faults.plan={kind:kill,group:1,at:5}"), ["faults.plan=", "must be a list", "'faults.plan=[{kind"]),
    ((*LOCAL, "faults.plan=[{group:1,at:5,rank:2}]"), ["rank: 2}: there is no such rank", "groups.count=2"]),
    ((*LOCAL, "faults.plan=[{kind:cancel,at:5}]"), ["faults: cancel", "this run is local"]),
    ((*LOCAL, "job=ddp", "job.args=[1]"), ["job.args is a mapping in this job"]),
]


@pytest.mark.parametrize(("words", "says"), each(REFUSED, ALSO_REFUSED))
def test_what_cannot_be_meant_is_refused_in_one_paragraph_and_nothing_is_done(
    words: tuple[str, ...], says: list[str], home: Path
) -> None:
    before = tree(home)
    done = ftslurm(*words, cwd=home, PATH=str(home / "no-slurm"))
    assert done.returncode == 2, done
    assert re.fullmatch(r"(sweep [^\n]+\n)?ftslurm: [^\n]+\n", done.stderr), done.stderr
    assert [part for part in says if part not in done.stderr] == [], done.stderr
    assert done.stdout == ""
    assert tree(home) == before


@pytest.mark.parametrize("verb", ["run", "plan"])
def test_a_syntax_error_is_refused_with_its_place_before_anything_is_submitted(verb: str, home: Path) -> None:
    (home / "train.py").write_text("def broken(:\n")
    before = tree(home)
    done = ftslurm(verb, *LOCAL, cwd=home)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[0].startswith(f"ftslurm: job.script: {home / 'train.py'}: line 1: ")
    assert done.stderr.splitlines()[2].strip() == "^"
    assert tree(home) == before


@pytest.mark.parametrize("words", [("run", "--cfg"), ("status", "a", "b"), ("logs", "--group", "x")])
def test_a_wrong_use_of_an_option_is_refused_in_one_paragraph(words: tuple[str, ...], home: Path) -> None:
    before = tree(home)
    done = ftslurm(*words, cwd=home)
    assert done.returncode == 2
    assert re.fullmatch(r"ftslurm[ \w]*: [^\n]+ \(ftslurm \w+ --help[ \w]*\)\n", done.stderr), done.stderr
    assert tree(home) == before


def test_no_words_at_all_is_a_question_and_shows_the_overview(home: Path) -> None:
    done = ftslurm(cwd=home)
    assert (done.returncode, done.stderr) == (2, "")
    assert "ftslurm job=ddp" in done.stdout


@pytest.mark.nightly
def test_an_interpreter_that_cannot_be_started_fails_the_run_and_says_so(home: Path) -> None:
    python = home / "python"
    python.write_text("#!/gone/interpreter\n")
    python.chmod(0o755)
    done = alone(*LOCAL, f"job.python={python}", "groups.count=1", cwd=home)
    assert done.returncode == 1, done
    (end,) = events(run_dirs(home)[0], "run_finished")
    assert end["outcome"] == "failed"
    assert str(python) in str(end["failure"])
    assert str(python) in done.stdout


# --- queries ----------------------------------------------------------------------------------------------------------


ANSWERED: list[Case] = [
    (("--help",), ["ftslurm job=ddp", "plan", "status", "logs", "stop", "inject", "RUN is a run directory"]),
    (("--version",), [f"ftslurm {__version__}\n"]),
    (
        ("run", "--help"),
        [
            *("  job         ddp, ", "  cluster     array, auto, ", "restart.max_per_group=5", "--config-dir"),
            *("  faults      kill_one, none\n", "  standby     auto, each, none, one\n"),
        ],
    ),
    (("inject", "--help"), ["--group", "--rank", "RUN", *(f"  {fault} " for fault in FAULTS)]),
    (("status", "--help"), ["--json", "--watch", "RUN"]),
    (("logs", "--help"), ["--group", "--rank", "--follow", "--failure", "--since", "[g1.a0.r2]"]),
    (("job=ddp", "--cfg", "job"), ["name: ddp", "count: 2"]),
    (("plan", *LOCAL), ["train.py", "local0, local1"]),
    (("plan", *LOCAL, "-m", "groups.count=3,4"), ["local0, local1, local2\n", "local0, local1, local2, local3\n"]),
    (("plan", "--config-dir", "conf", "job=mine", "cluster=local"), ["train.py --lr 0.1"]),
    (("plan", *LOCAL, "job.args={lr: 7, note: 'a b'}", "job.env={A: 1}"), ["train.py --lr 7 --note 'a b'"]),
]
ALSO_ANSWERED: list[Case] = [
    (("-h",), ["ftslurm job=ddp"]),
    (("run", "job=ddp", "groups.count=7", "--cfg", "job"), ["count: 7"]),
    (("plan", *LOCAL, "standby=one"), ["local0, local1, local2", "standby-000  on local2"]),
    (("plan", "cluster=local", "--config-dir", "conf", "job=mine", "job.args.lr=7"), ["train.py --lr 7"]),
    (("plan", "cluster=local", "job=ddp", "job.args.lr=7"), ["train_ddp.py --steps 120 --lr 7"]),
]


@pytest.mark.parametrize(("words", "says"), each(ANSWERED, ALSO_ANSWERED))
def test_questions_are_answered_and_leave_no_trace(words: tuple[str, ...], says: list[str], home: Path) -> None:
    before = tree(home)
    done = ftslurm(*words, cwd=home)
    assert (done.returncode, done.stderr) == (0, ""), done
    assert [part for part in says if part not in done.stdout] == [], done.stdout
    assert tree(home) == before


def test_cfg_job_is_the_whole_configuration_in_yaml(home: Path) -> None:
    shown = yaml.safe_load(ftslurm("job=ddp", "--cfg", "job", cwd=home).stdout)
    assert dotted(shown) >= set(every_key())


def test_plan_shows_the_nodes_of_groups_and_what_the_loss_of_a_node_would_do(home: Path) -> None:
    shape = ("groups.count=2", "groups.nodes=2", "groups.workers=2", "cluster.spare_nodes=1")
    # No Slurm is needed to see a plan for one.
    done = ftslurm("plan", "cluster=slurm", "job.script=train.py", *shape, cwd=home, PATH=str(home / "no-slurm"))
    assert "cannot check whether the cluster has these nodes" in done.stderr
    lines = done.stdout.splitlines()
    assert [line.split(None, 2)[1:] for line in lines if line.startswith("group ")] == [
        ["0", "on node1, node2, 2 ranks on each (likewise group 1)"],
    ]
    assert any(line.strip().startswith("#SBATCH --nodes=5") for line in lines)
    assert lines[-2] == "if node2 died   group 0 moves to node1, node5 (likewise node3, node4)"
    assert lines[-1] == "if node5 died   no group is hit"


def test_slurm_off_path_means_this_machine_for_auto_and_the_reason_is_told(home: Path) -> None:
    done = ftslurm("plan", "job.script=train.py", cwd=home, PATH=str(home / "no-slurm"))
    assert done.returncode == 0
    assert done.stderr == "ftslurm: sbatch is not on PATH: cluster=local\n"
    assert "local0" in done.stdout


def test_a_users_own_presets_are_found_from_any_folder(home: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    words = ("plan", "cluster=local", "job=mine", f"job.script={home / 'train.py'}")
    done = ftslurm(*words, "--config-dir", str(home / "conf"), cwd=tmp_path_factory.mktemp("elsewhere"))
    assert f"{home / 'train.py'} --lr 0.1" in done.stdout, done


# --- quick and small --------------------------------------------------------------------------------------------------


def test_help_costs_less_than_a_third_of_a_second(home: Path) -> None:
    costs = []
    for _ in range(3):  # the least of three: the machine may be busy, and compiles the modules the first time
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        alone("--help", cwd=home)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        costs.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(costs) < 0.3


@pytest.mark.parametrize(
    "code",
    [
        "from ftslurm.cli.main import main; main(['plan', 'cluster=local', 'job.script=train.py'])",
        "from ftslurm.cli.main import main; main(['status', 'gone'])",
        "import ftslurm.controller.loop, ftslurm.entry",
    ],
)
def test_neither_the_command_line_nor_the_controller_imports_torch(code: str, home: Path) -> None:
    check = f"{code}\nimport sys; sys.exit(str({{'torch', 'torchft', 'numpy'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", check], cwd=home, capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == "set()", done.stderr


def test_a_secret_on_the_command_line_is_warned_of_and_one_that_is_missing_refused(home: Path) -> None:
    words = ("job.env.WANDB_API_KEY=s3cr3t", *LOCAL)
    done = ftslurm("plan", *words, cwd=home)
    assert "job.env.WANDB_API_KEY is a secret: no file has its value" in done.stderr
    assert "with job.secrets=[WANDB_API_KEY]" in done.stderr
    assert "s3cr3t" not in done.stderr + done.stdout
    done = ftslurm("run", *words, "job.secrets=[HF_TOKEN]", cwd=home, HF_TOKEN="")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("ftslurm: job.secrets: HF_TOKEN is not set in this environment, or empty")
    assert "s3cr3t" not in done.stderr
    assert run_dirs(home) == []


def test_plan_refuses_what_run_would_refuse(home: Path) -> None:
    missing = ftslurm("plan", "job.secrets=[HF_TOKEN]", *LOCAL, cwd=home, HF_TOKEN="")
    assert missing.returncode == 2
    assert missing.stderr.startswith("ftslurm: job.secrets: HF_TOKEN is not set in this environment, or empty")
    (home / "everybodys").mkdir()
    (home / "everybodys").chmod(0o777)
    unsafe = ftslurm("plan", "run.root=everybodys/runs", *LOCAL, cwd=home)
    assert unsafe.returncode == 2
    assert "may be written by everybody" in unsafe.stderr


# --- runs -------------------------------------------------------------------------------------------------------------

ODD = ["two words", """it's "quoted" $HOME \\ ;""", "two\nlines", "--flag=x,y", "é", "", "[1]"]


def quoted(text: str) -> str:
    """Quote a value for Hydra, where a backslash is literal unless a quote follows it."""
    return '"' + re.sub(r'\\*(?="|$)', lambda found: 2 * found[0], text).replace('"', '\\"') + '"'


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """The working directory of a small run that has ended, and its command."""
    home = tmp_path_factory.mktemp("""it's "home" $HOME""")
    (home / "look.py").write_text(FILES["look.py"])
    arguments = ",".join(quoted(word) for word in ODD)
    words = ("cluster=local", "job.script=look.py", f"job.args=[{arguments}]", "groups.count=1", "run.name=odd")
    done = alone(*words, LIGHT, cwd=home)
    assert done.returncode == 0, done
    return home, done


@pytest.fixture(scope="module")
def finished(followed: tuple[Path, subprocess.CompletedProcess[str]]) -> Path:
    """The working directory of that run."""
    return followed[0]


def test_a_run_that_saves_nothing_says_so_once_and_plan_says_it_too(
    followed: tuple[Path, subprocess.CompletedProcess[str]], home: Path
) -> None:
    said = "no checkpoint is saved unless you ask for one (ftslurm save): when all groups fail at "
    assert followed[1].stderr.count(said) == 1
    assert "saved        nothing: when all groups" in ftslurm("plan", *LOCAL, cwd=home).stdout
    assert "saved   " not in ftslurm("plan", *LOCAL, "checkpoint.every=5", cwd=home).stdout


def looked(run: Path) -> tuple[list[str], list[tuple[str, bool, int]]]:
    text = (run / "logs/group-0000/attempt-000/rank-0.log").read_text()
    argv, above = json.loads(text.partition("LOOKED ")[2].splitlines()[0])
    return argv, [(command, torch, mb) for command, torch, mb in above]


def dotted(value: object, prefix: str = "") -> set[str]:
    """Return every key of nested mappings, dotted, with all its prefixes."""
    found = set()
    for key, inner in value.items() if isinstance(value, dict) else ():
        found |= {f"{prefix}{key}"} | dotted(inner, f"{prefix}{key}.")
    return found


def test_arguments_reach_the_script_as_they_were_written(finished: Path) -> None:
    (run,) = run_dirs(finished)
    assert looked(run)[0] == [str(run / "code" / "look.py"), *ODD]


def test_a_run_leaves_its_directory_and_nothing_else(finished: Path) -> None:
    (run,) = run_dirs(finished)
    assert sorted(path.name for path in finished.iterdir()) == ["look.py", "runs"]
    assert [path.name for path in (finished / "runs").iterdir()] == [run.name]
    assert run.stat().st_mode & 0o777 == 0o700
    assert (run / "config.yaml").stat().st_mode & 0o777 == 0o600
    assert list(run.rglob("*.pkl")) == []  # nothing that would have to be unpickled
    assert re.fullmatch(r"odd-\d{8}-\d{6}-[0-9a-f]{4}", run.name)


def test_the_processes_above_a_script_are_small_and_have_no_torch(finished: Path) -> None:
    (run,) = run_dirs(finished)
    above = looked(run)[1]
    (controller,) = [process for process in above if "ftslurm.entry controller" in process[0]]
    (command,) = [process for process in above if "-m ftslurm cluster=local" in process[0]]
    for _, torch, mb in (controller, command):
        assert not torch
        assert mb < 100


def test_config_yaml_is_the_whole_configuration_with_nothing_left_open(finished: Path) -> None:
    (run,) = run_dirs(finished)
    text = (run / "config.yaml").read_text()
    config = yaml.safe_load(text)
    assert dotted(config) >= set(every_key())
    assert "???" not in text
    assert not re.search(r"\$\{", text)
    assert config["job"]["script"] == str(finished / "look.py")
    assert config["job"]["args"] == ODD
    assert config["run"] == {
        "name": "odd",
        "root": str(finished / "runs"),
        "dir": str(run),
        "share": None,
        "trust": [],
    }
    assert config["cluster"]["kind"] == "local"
    assert config["groups"]["gpus"] is not None
    defaults = Config()  # what was not set is there with its default
    assert config["restart"]["max_per_group"] == attrgetter("restart.max_per_group")(defaults)


def test_the_controller_leaves_a_report_when_the_run_has_ended(finished: Path) -> None:
    (run,) = run_dirs(finished)
    assert "succeeded: all groups finished" in (run / "report.html").read_text()
    done = ftslurm("report", "--json", str(run), cwd=finished)
    assert json.loads(done.stdout)["trained_s"] > 0, done


def test_a_sweep_makes_a_run_of_each_value_and_ends_with_the_worst_exit_code(home: Path) -> None:
    sweep = ("-m", "cluster=local", "job.script=exit.py", "job.args.code=7,0", "groups.count=1", "restart=never")
    done = alone(*sweep, LIGHT, cwd=home)
    assert done.returncode == 1, done
    runs = run_dirs(home)
    ends = {str(events(run, "run_finished")[0]["outcome"]) for run in runs}
    assert (len(runs), ends) == (2, {"failed", "succeeded"})
    assert {path.name for path in (home / "runs").iterdir()} == {run.name for run in runs}  # no multirun.yaml
    assert all(line.count(run.name) for run in runs for line in [done.stdout])
    assert done.stderr.count("no checkpoint is saved unless you ask for one") == len(runs)


@pytest.fixture
def started(home: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """A function that starts commands; the processes that they leave are killed."""
    processes = []

    def start(*words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "ftslurm", *words]
        with (home / "out").open("w") as out:
            processes.append(
                subprocess.Popen(command, cwd=home, stdout=out, stderr=out, text=True, start_new_session=True)
            )
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.wait()
    for run in (path.parent for path in home.glob("runs/*/events.jsonl")):
        kill(*(int(str(e["pid"])) for e in events(run, "run_started") if not events(run, "run_finished")))
        kill(*left_behind(home))


def kill(*pids: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def left_behind(home: Path) -> list[int]:
    mark = f"FTSLURM_RUN_DIR={home}/".encode()
    return [pid for pid, _, environ in all_processes() if any(line.startswith(mark) for line in environ)]


def wait_until(true: Callable[[], object], what: Callable[[], str]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, what()
        time.sleep(0.05)


def test_ctrl_c_ends_a_sweep_not_just_the_run_it_is_at(
    home: Path, started: Callable[..., subprocess.Popen[str]]
) -> None:
    sweep = ("-m", "cluster=local", "job.script=wait.py", "job.args.x=1,2", "groups.count=1", "stop.grace_s=1")
    process = started(*sweep, LIGHT)
    logs = "runs/*/logs/group-0000/attempt-000/rank-0.log"
    wait_until(lambda: any("waiting" in log.read_text() for log in home.glob(logs)), (home / "out").read_text)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(PATIENCE_S) == 130, (home / "out").read_text()
    assert len(run_dirs(home)) == 1
    assert "Traceback" not in (home / "out").read_text()
    wait_until(lambda: not left_behind(home), lambda: f"left behind: {left_behind(home)}")


def test_a_flooded_log_keeps_its_beginning_and_its_end_and_says_what_is_missing(home: Path) -> None:
    (home / "flood.py").write_text(
        "import subprocess\nprint('first', flush=True)\nsubprocess.run('yes flood | head -c 6000000', shell=True)\n"
        "print('last')\n"
    )
    words = ("cluster=local", "job.script=flood.py", "groups.count=1", "logs.max_mb=1")
    assert alone("run", *words, LIGHT, cwd=home).returncode == 0
    (run,) = run_dirs(home)
    log = run / "logs/group-0000/attempt-000/rank-0.log"
    assert log.stat().st_size < 1 << 20
    lines = ftslurm("logs", run.name, cwd=home).stdout.splitlines()
    assert (lines[0], lines[-1]) == ("first", "last")
    (said,) = [line for line in lines if line not in ("first", "flood", "last")]
    assert re.fullmatch(r"ftslurm: \d+ bytes of this log were dropped here \(logs\.max_mb=1\)", said)
    dropped, kept = int(said.split()[1]), log.stat().st_size - len(said) - 1
    assert dropped + kept == len("first\nlast\n") + 6_000_000
