"""TensorBoard, W&B (offline) and MLflow with real runs: one run each, with every committed step once, whoever dies."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest
from harness import Backend, Run, quoted

from ftslurm.config.schema import shipped

STEPS, KILLED, HELD = 24, 6, 9
SMALL = {"dim": 32, "layers": 1, "context": 32, "batch-size": 4, "max-mb": 0.3}
Values = list[tuple[int, float]]  # step and loss, in the order of the tracker


def start(backend: Backend, tracker: str, kill: str, *words: str) -> Run:
    """Start the example with two groups and a kill ("GROUP RANK STEP METHOD", see scripts/example.py)."""
    example = shipped("examples") / "train_tracked.py"
    args = {"tracker": tracker, "steps": STEPS, **SMALL}
    line = [f"job.env.EXAMPLE={quoted(example)}", f"job.env.KILL={quoted(kill)}", f'job.env.HOLD="{HELD}"']
    return backend.start("groups.count=2", *line, *words, script="example.py", args=args)


def of_tensorboard(run: Run) -> tuple[Values, int]:
    """Return what TensorBoard shows, and how many times the run was opened."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (folder,) = (run.dir / "tensorboard").iterdir()  # of one run
    shown = EventAccumulator(str(folder)).Reload().Scalars("loss")
    return [(event.step, event.value) for event in shown], len(list(folder.iterdir()))


def of_wandb(run: Run) -> tuple[Values, int]:
    """Return what `wandb sync` would send, and how many times the run was opened."""
    from wandb.proto.wandb_internal_pb2 import Record

    values: Values = []
    files = sorted(run.dir.glob("wandb/offline-run-*/*.wandb"))
    assert {path.name for path in files} == {f"run-{run.dir.name}.wandb"}  # of one run
    for path in files:
        for data in wandb_records(path.read_bytes()):
            record = Record.FromString(data)
            items = {item.key or ".".join(item.nested_key): item.value_json for item in record.history.item}
            if "loss" in items:
                values.append((int(items["_step"]), float(items["loss"])))
    return values, len(files)


def wandb_records(text: bytes) -> Iterator[bytes]:
    """Yield the records of a .wandb file: LevelDB's log format, in blocks of 32 KiB, after a head of 7 bytes."""
    at, whole = 7, b""
    while at + 7 <= len(text):
        _, length, kind = struct.unpack_from("<IHB", text, at)
        whole += text[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield whole
            whole = b""
        if (left := 32768 - at % 32768) < 7:
            at += left


def of_mlflow(run: Run) -> tuple[Values, int]:
    """Return what MLflow has stored, and how many runs there are."""
    import mlflow

    client = mlflow.MlflowClient((run.dir / "mlruns").as_uri())
    (experiment,) = (found for found in client.search_experiments() if found.name == "ftslurm")
    runs = client.search_runs([experiment.experiment_id])
    assert [found.info.run_name for found in runs] == [run.dir.name]
    assert runs[0].info.status == "FINISHED"
    return [(value.step, value.value) for value in client.get_metric_history(runs[0].info.run_id, "loss")], len(runs)


def check(values: Values) -> None:
    """Check for every step, once and in order."""
    assert [step for step, _ in values] == list(range(1, STEPS + 1))
    assert max(loss for _, loss in values) < 7  # bytes that are not yet predicted: ln 256 = 5.5
    assert values[-1][1] < values[0][1]


@pytest.mark.parametrize("backend", ["local"], indirect=True)
@pytest.mark.nightly
def test_one_run_of_each_tracker_has_every_step_once_when_its_leader_dies(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # to read it; the example sets it to write it
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    # The leader dies after the step has been committed and before it is logged.
    leader = f"0 0 {KILLED} participating_rank"
    readers = {"tensorboard": of_tensorboard, "wandb": of_wandb, "mlflow": of_mlflow}
    runs = {name: start(backend, name, leader) for name in readers}
    for name, run in runs.items():
        run.finish()
        (killed,) = run.named("step_exited", attempt=0, group=0)
        assert (killed["cause"], killed["signal"]) == ("killed", 9)
        values, opened = readers[name](run)
        if name == "wandb":  # what it may not have written is logged again, by groups that have the same values
            assert len(dict(values)) == len(set(values))
            values = sorted(set(values))
        check(values)
        assert opened == (1 if name == "mlflow" else 3)  # by group 0, by group 1, by group 0 that is back
        assert len(set(run.weights().values())) == 1


@pytest.mark.slurm
@pytest.mark.nightly
def test_steps_that_a_full_restart_repeats_are_not_logged_twice(slurm: Backend) -> None:
    run = start(slurm, "tensorboard", f"all 0 {KILLED} should_commit", "checkpoint.every=4").finish()
    assert [event["checkpoint_step"] for event in run.named("full_restart")] == [4]
    check(of_tensorboard(run)[0])
