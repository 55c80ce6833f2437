"""What share of 10,000 GPUs' time is kept when GPUs fail as published? A seeded simulation, no measurement on GPUs.

    python benchmarks/simulate.py                                      all tables; a minute
    python benchmarks/simulate.py --check benchmarks/results/goodput-4x20.json   the same model beside a real run

simulation.py is the model and says what it leaves out. Five strategies meet the same failures: a restart of the whole
job by Slurm's requeue; the same within the allocation; torchft's own Slurm runner; ftslurm with cold restarts; ftslurm
with warm standbys. How long each part of a restart takes is measured with a tiny model on one machine (MEASURED), which
no large training is like. So there is a second set for a large model (LARGE), which is assumed, and a table of what
changes with each assumption.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from results import FOLDER, Bar, bars, conditions, save, table, told
from simulation import Loss, Outcome, Scene, Strategy, failures, simulate

MTTF_H = 7.9 * 1024  # of one GPU: a job of 1,024 GPUs fails every 7.9 h (Meta RSC, arXiv 2410.21680)
SCENE = Scene(groups=156, nodes=8, gpus=8, gpu_mttf_h=MTTF_H)
SEEDS = 20


@dataclass(frozen=True)
class Times:
    """The parts of a restart, in seconds."""

    start_s: float  # new processes to the first step
    warm_s: float  # a standby to the first step
    join_s: float  # all wait for a group that joins
    restore_s: float  # loading a checkpoint
    step_s: float
    runner_pause_s: float = 5.0  # with torchft's runner all others wait so long for a group that leaves


# The names of goodput.py's contenders, and the strategies that they follow.
CONTENDERS = {
    "submitit-requeue": "full restart, requeued",
    "torchft-runner": "torchft's runner",
    "ftslurm-cold": "ftslurm, cold",
    "ftslurm-warm": "ftslurm, warm",
}
MEASURED = Times(start_s=1.5, warm_s=0.25, join_s=0.1, restore_s=0.1, step_s=10.0)
LARGE = Times(start_s=180.0, warm_s=15.0, join_s=20.0, restore_s=120.0, step_s=10.0)
SOURCES = (
    ("failures", "one in 8,090 hours of a GPU", "7.9 h at 1,024 GPUs, Meta RSC (arXiv 2410.21680)"),
    ("failures that break a node", "78 %", "the share of hardware in the Llama 3 report"),
    ("failures in which a node falls silent", "20 %", "assumed"),
    ("repair of a node", "24 h, exponential", "assumed"),
    ("spare nodes", "32, 2.6 %", "assumed; 5 to 10 % are advised in practice"),
    ("checkpoint", "every 30 min, without a pause", "assumed"),
    ("a step", "10 s", "10.9 s in torchft's published run on 300 GPUs"),
    ("a process's end is noticed", "0.03 s", "measured, benchmarks/recovery.py (README)"),
    ("start, cold: tiny model", "1.5 s", "measured there: 1.55 s from the kill to the first step"),
    ("start, warm: tiny model", "0.25 s", "measured there: 0.29 s"),
    ("pause of the others, ftslurm", "0.04 s and the spoiled step", "measured there"),
    (
        "pause of the others, torchft's runner",
        "5 s and the spoiled step",
        "the heartbeat time-out; measured there with five replicas: 5 s if four died, 60 s if one or two did",
    ),
    (
        "a silent node, ftslurm",
        "11 s to its end; the others pause 3 s",
        "health.lost_after_s; measured: 2.3 to 2.9 s (docs/lighthouse.md)",
    ),
    ("a silent node, Slurm", "300 s", "SlurmdTimeout's default; more was measured"),
    ("torchft's runner: to the new job's start", "7.9 s", "measured once: 10.06 s to the first step; an empty queue"),
    ("requeue of a job", "121 s", "measured on Slurm 22.05: the default of cred_expire, and 1 s; an empty queue"),
    ("restart within the allocation", "0.6 s", "measured twice: 2.78 s to the first step with ft_launcher"),
    ("start, cold / warm: large model", "180 s / 15 s", "assumed: imports, NCCL, loading; no GPU was measured"),
    ("a group joins: large model", "all wait 20 s", "assumed: new process groups and the transfer of the state"),
    ("loading a checkpoint: large model", "120 s", "assumed"),
)


def strategies(times: Times, standbys: int = 1) -> list[Strategy]:
    """Return the five strategies with these times."""
    slurm = Strategy(
        "full restart, requeued",
        detect_s=0.1,
        detect_node_s=300.0,
        again_s=121.0,
        start_s=times.start_s,
        pause_s=0.0,
        pause_node_s=0.0,
        join_s=0.0,
        restore_s=times.restore_s,
        whole_job=True,
    )
    runner = replace(
        slurm,
        name="torchft's runner",
        again_s=7.9,
        pause_s=times.runner_pause_s,
        pause_node_s=times.runner_pause_s,
        join_s=times.join_s,
        whole_job=False,
    )
    cold = replace(
        runner, name="ftslurm, cold", detect_s=0.03, detect_node_s=11.0, again_s=0.0, pause_s=0.04, pause_node_s=3.0
    )
    return [
        slurm,
        replace(slurm, name="full restart, in place", again_s=0.6, detect_node_s=11.0),
        runner,
        cold,
        replace(cold, name="ftslurm, warm", standbys=standbys, warm_s=times.warm_s),
    ]


def outcomes(scene: Scene, times: Times, seeds: int, standbys: int = 1) -> dict[str, list[Outcome]]:
    """Return what becomes of each strategy with the failures of each seed."""
    scene = replace(scene, step_s=times.step_s)
    found: dict[str, list[Outcome]] = {}
    for seed in range(seeds):
        trace = list(failures(scene, seed))
        for strategy in strategies(times, standbys):
            found.setdefault(strategy.name, []).append(simulate(scene, strategy, trace))
    return found


def percent(values: Sequence[float]) -> str:
    """Return the median of shares, and the smallest and largest, in percent."""
    low, middle, high = (100 * value for value in (min(values), statistics.median(values), max(values)))
    return f"{middle:.2f} ({low:.2f}-{high:.2f})"


def goodput_table(scene: Scene, found: Mapping[str, Sequence[Outcome]]) -> str:
    """Return goodput, participation and the lost GPU-hours a day by cause, for each strategy."""
    causes = [loss for loss in Loss if any(outcome.lost[loss] > 0 for many in found.values() for outcome in many)]
    rows, day = [], scene.all_gpus * 24
    for name, many in found.items():
        lost = [f"{day * statistics.median(outcome.lost[cause] for outcome in many):,.0f}" for cause in causes]
        kept, part = [outcome.kept for outcome in many], [outcome.participation for outcome in many]
        rows.append([name, percent(kept), percent(part), *lost])
    header = ["strategy", "goodput %", "participation %", *(f"h: {cause.value}" for cause in causes)]
    under = f"h: lost GPU-hours a day, of {day:,}. Median (least-greatest) of the seeds."
    return f"{table(header, rows)}\n{under}"


def variations() -> dict[str, tuple[Scene, Times]]:
    """Return the scenes of the table of assumptions: one thing is changed at a time."""
    often, rare = MTTF_H / 4, 1.8 * 16_384  # rare: the same paper's projection for large jobs
    five = replace(SCENE, checkpoint_every_s=300.0)
    return {
        "as assumed": (SCENE, LARGE),
        "times measured with a tiny model": (SCENE, MEASURED),
        "the same, starts take 10 times as long": (SCENE, replace(MEASURED, start_s=15.0, warm_s=2.5)),
        "starts take 4 times as long (720 s; warm 60 s)": (SCENE, replace(LARGE, start_s=720.0, warm_s=60.0)),
        "with torchft's runner all wait 60 s for a group that leaves": (SCENE, replace(LARGE, runner_pause_s=60.0)),
        "all wait 80 s for a group that joins": (SCENE, replace(LARGE, join_s=80.0)),
        "all wait 2 s for a group that joins": (SCENE, replace(LARGE, join_s=2.0)),
        "4 times as many failures": (replace(SCENE, gpu_mttf_h=often), LARGE),
        "4 times as many failures and spare nodes": (replace(SCENE, gpu_mttf_h=often, spare_nodes=128), LARGE),
        "failures as projected for 16,384 GPUs (1.8 h)": (replace(SCENE, gpu_mttf_h=rare), LARGE),
        "no spare nodes": (replace(SCENE, spare_nodes=0), LARGE),
        "no spare nodes, repair in 4 h": (replace(SCENE, spare_nodes=0, repair_h=4.0), LARGE),
        "only processes fail": (replace(SCENE, process_share=1.0, node_share=0.0), LARGE),
        "1,250 groups of 8 GPUs": (replace(SCENE, groups=1250, nodes=1), LARGE),
        "39 groups of 256 GPUs": (replace(SCENE, groups=39, nodes=32, spare_nodes=64), LARGE),
        "a checkpoint every 5 min, without a pause": (five, LARGE),
        "a checkpoint every 5 min, 10 s pause": (replace(five, checkpoint_cost_s=10.0), LARGE),
    }


def medians(scene: Scene, times: Times, seeds: int) -> dict[str, float]:
    """Return the median goodput of each strategy."""
    return {name: statistics.median(one.kept for one in many) for name, many in outcomes(scene, times, seeds).items()}


def changes_table(found: Mapping[str, Mapping[str, float]]) -> str:
    """Return the goodput of each strategy in each variation."""
    who = list(next(iter(found.values())))
    rows = [[name, *(f"{100 * row[strategy]:.2f}" for strategy in who)] for name, row in found.items()]
    return table(["changed", *who], rows)


def report(seeds: int) -> None:
    """Simulate, and write the results."""
    under = conditions()
    large, measured = (outcomes(SCENE, times, seeds) for times in (LARGE, MEASURED))
    changed = {name: medians(scene, times, seeds) for name, (scene, times) in variations().items()}
    size = f"{SCENE.groups} groups of {SCENE.nodes * SCENE.gpus} GPUs, {SCENE.days:g} days, {seeds} seeds"
    text = [
        "# Simulation: 9,984 GPUs that fail as published",
        "Nothing here was measured on GPUs. benchmarks/simulation.py has the model and what it leaves out.",
        told(under),
        "## Parameters",
        table(["what", "value", "from"], SOURCES),
        f"## A large model, assumed times ({size})",
        goodput_table(SCENE, large),
        f"## Times measured with a tiny model ({size})",
        goodput_table(SCENE, measured),
        "## What each assumption changes: goodput in percent",
        changes_table(changed),
    ]
    kept = {
        key: {name: [one.kept for one in many] for name, many in found.items()}
        for key, found in (("large", large), ("measured", measured))
    }
    save(FOLDER / "simulation.json", {"conditions": under, "scene": asdict(SCENE), "changed": changed} | kept)
    (FOLDER / "simulation.md").write_text("\n\n".join(line.strip() for line in text) + "\n")
    title = "Goodput of 9,984 GPUs, simulated; a large model with assumed times"
    rows = [Bar(name, tuple(one.kept for one in many), ours=name.startswith("ftslurm")) for name, many in large.items()]
    (FOLDER / "simulation.svg").write_text(bars(title, f"{size}; failures as published", 1.0, rows))
    print("\n\n".join(text))


# --- beside a real run ------------------------------------------------------------------------------------------------


def small(plan: Mapping[str, float], seeds: int) -> dict[str, list[Outcome]]:
    """Return the model's outcomes for a run of goodput.py: groups of one process, which are killed."""
    scene = Scene(
        groups=int(plan["groups"]),
        nodes=1,
        gpus=1,
        gpu_mttf_h=plan["groups"] * plan["mean_s"] / 3600.0,
        process_share=1.0,
        node_share=0.0,
        spare_nodes=1,
        checkpoint_every_s=plan["checkpoint_every"] * plan["step_s"],
        days=plan["minutes"] / plan["blocks"] / 1440.0,
    )
    return outcomes(scene, replace(MEASURED, step_s=plan["step_s"]), seeds)


def check_table(data: Mapping[str, Any], seeds: int) -> str:
    """Return goodput and participation of a real run beside the model's."""
    model, rows = small(data["plan"], seeds), []
    for contender, strategy in CONTENDERS.items():
        measures = [block["measures"] for block in data["blocks"] if block["contender"] == contender]
        measures = [one for one in measures if one]
        if measures:
            kept, part = [one["goodput"] for one in measures], [one["participation"] for one in measures]
            ours = model[strategy]
            rows.append(
                [
                    contender,
                    percent(kept),
                    percent([one.kept for one in ours]),
                    percent([one for one in part if one is not None] or [1.0]),
                    percent([one.participation for one in ours]),
                ]
            )
    header = ["contender", "goodput %, measured", "model", "participation %, measured", "model"]
    return table(header, rows)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--check", type=Path, metavar="JSON", help="results of benchmarks/goodput.py to compare with")
    options = parser.parse_args(argv)
    if options.check:
        print(check_table(json.loads(options.check.read_text()), max(options.seeds, 100)))
    else:
        report(options.seeds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
