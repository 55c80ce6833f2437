"""Train the small GPT of train_ddp.py and log it: one run of TensorBoard, W&B or MLflow for all groups and attempts.

At each step one process of the run leads, and only that one has the tracker open. When its group dies, the leader of
the next step opens the same run of the tracker and first logs the steps that the last one has not. So every committed
step is logged once, whichever groups die, and also after a restart of all groups from a checkpoint.

Everything is stored in the run directory (FTSLURM_RUN_DIR); with MLFLOW_TRACKING_URI=URI or WANDB_MODE=online it goes
to a server. To try it:

    ftslurm job.script=example:train_tracked.py job.args.tracker=tensorboard groups.count=3 faults=kill_one \
        job.total_steps=120
"""

import os
from datetime import timedelta
from pathlib import Path
from typing import Protocol

from gpt import GPT, GROUP, RANK, Text, adamw, digest, log, parser, pick_device
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo, ProcessGroupNCCL

from ftslurm.checkpoint import Checkpointer
from ftslurm.tracking import StepMetrics

RUN_ID = os.environ.get("FTSLURM_RUN_ID", "tracked")  # the same in all groups and attempts
FOLDER = Path(os.environ.get("FTSLURM_RUN_DIR", "."))


class Tracker(Protocol):
    """One run of a tracker; see StepMetrics for settle_s."""

    settle_s: float

    def log(self, step: int, values: dict[str, float]) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """`tensorboard --logdir RUN/tensorboard`: the files of all leaders in one folder are one run."""

    settle_s = 0.0

    def __init__(self) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(FOLDER / "tensorboard" / RUN_ID)

    def log(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()  # else a kill loses what is in its queue, for up to two minutes

    def close(self) -> None:
        self.writer.close()


class WandB:
    """`wandb sync --yes RUN/wandb/offline-run-*` sends what was logged offline: the same id, so the same run."""

    settle_s = 30.0  # wandb's own process writes and sends what it was given about every 15 s, and dies with the group

    def __init__(self) -> None:
        import wandb

        mode = os.environ.get("WANDB_MODE", "offline")
        self.run = wandb.init(project="ftslurm", id=RUN_ID, name=RUN_ID, resume="allow", mode=mode, dir=FOLDER)

    def log(self, step: int, values: dict[str, float]) -> None:
        self.run.log(values, step=step, commit=True)

    def close(self) -> None:
        self.run.finish()


class MLflow:
    """`mlflow ui --backend-store-uri RUN/mlruns`. MLflow chooses the id of a run itself, so it is found by its name."""

    settle_s = 0.0

    def __init__(self) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        import mlflow

        self.mlflow = mlflow
        if "MLFLOW_TRACKING_URI" not in os.environ:
            os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
            mlflow.set_tracking_uri((FOLDER / "mlruns").absolute().as_uri())
        mlflow.set_experiment("ftslurm")
        found = mlflow.search_runs(filter_string=f"attributes.run_name = '{RUN_ID}'", output_format="list")
        mlflow.start_run(run_id=found[0].info.run_id if found else None, run_name=RUN_ID)

    def log(self, step: int, values: dict[str, float]) -> None:
        self.mlflow.log_metrics(values, step=step)

    def close(self) -> None:
        self.mlflow.end_run()


TRACKERS = {"tensorboard": TensorBoard, "wandb": WandB, "mlflow": MLflow}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--steps", type=int, default=120)
    options.add_argument("--tracker", choices=TRACKERS, default="tensorboard")
    args = options.parse_args()

    device, backend = pick_device(args.backend)
    text = Text(args, device)
    model = GPT(args).to(device)

    def state_dict() -> dict:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "metrics": metrics.state_dict()}

    def load_state_dict(state: dict) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        metrics.load_state_dict(state["metrics"])

    process_group = ProcessGroupNCCL if backend == "nccl" else ProcessGroupGloo
    manager = Manager(
        pg=process_group(timeout=timedelta(seconds=30)),
        min_replica_size=1,
        use_async_quorum=False,  # as in train_ddp.py
        load_state_dict=load_state_dict,
        state_dict=state_dict,
        replica_id=f"train_tracked_{GROUP}",
        timeout=timedelta(seconds=30),
    )
    ddp = DistributedDataParallel(manager, model)
    optimizer = Optimizer(manager, adamw(model, args))
    open_tracker = TRACKERS[args.tracker]
    metrics = StepMetrics(manager, settle_s=open_tracker.settle_s)
    checkpointer = Checkpointer(manager)  # of all that is in state_dict()
    checkpointer.restore()

    tracker: Tracker | None = None
    while manager.current_step() < args.steps:
        optimizer.zero_grad()  # finds the quorum of this step, and copies the state from a live group if need be
        step = manager.current_step()
        batch = manager.batches_committed() + (manager.participating_rank() or 0)
        loss = ddp(text.batch(batch))
        loss.backward()
        mean_loss = loss.detach().clone()
        manager.allreduce(mean_loss).wait()  # over all groups: any of them may have to log it
        optimizer.step()
        checkpointer.step()
        if manager.current_step() == step:
            continue  # not committed: nothing to log
        text.note(manager, [batch])

        for logged, values in metrics.committed(loss=mean_loss):  # none, unless this process leads
            tracker = tracker or open_tracker()
            tracker.log(logged, values)
        if tracker and not metrics.leads:  # a group that is back leads again: a tracker's run has one writer
            tracker.close()
            tracker = None

    if tracker:
        tracker.close()
    if RANK == 0:
        log(f"step {manager.current_step()} | final")
    log(f"weights sha256={digest(model.parameters())}")
    checkpointer.close()
    manager.shutdown(wait=False)


if __name__ == "__main__":
    main()
