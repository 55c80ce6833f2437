"""What do many replica groups cost? Real runs, Slurm, and the pure core; results in benchmarks/results/scale.*.

    python benchmarks/scale.py                                     16 real groups, srun, and the core; 15 minutes
    python benchmarks/scale.py --groups 64 128 --kills 3           bigger runs; 64 groups take 7 minutes, 128 take 15
    python benchmarks/scale.py --parts groups --torch --groups 64  the same with torch; each group needs 170 MB
    python benchmarks/scale.py --table                             the tables again, from the JSON

groups   so many groups on as many fake nodes of a throwaway Slurm (scale_groups.py): start, training in peace, and
         SIGKILL of one worker, of eight, and of all but one at the same moment
slurm    one more srun, and slurmctld, while 0 to 256 other steps run
core     decisions, and the replay of a journal, with 100 to 10,000 groups (core_scale.py): nothing real

The Lighthouse alone, with up to 1,000 members beside torchft's, is benchmarks/scale_lighthouse.py. A finished part is
written at once and kept by later runs. The machine has few cores, and all nodes are on it: times of a start and of a
return are mostly the CPU time of the workers. CPU times and counts are what carries over to a real cluster.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import core_scale
import scale_groups
from results import FOLDER, Bar, bars, conditions, save, table, told

from ftslurm.controller.loop import COLLECT_GARBAGE_AFTER

PARTS = ("groups", "slurm", "core")
SIZES = (16,)
STEPS = (0, 16, 64, 128, 256)
NAME = "scale"


def shown(value: float) -> str:
    """Return a number with three digits or, if it is larger, whole."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def across(rows: Mapping[str, Mapping[str, float]], first: str, unit: str = "") -> str:
    """Return a table with a column for each row of measurements, and a line for each measure."""
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    lines = [[name, *(shown(row[name]) if name in row else "-" for row in rows.values())] for name in names]
    return table([first, *(f"{key}{unit}" for key in rows)], lines)


def markdown(data: Mapping[str, Any]) -> str:
    """Return all tables."""
    text = ["# Many replica groups", "`python benchmarks/scale.py`; no GPU was used."]
    for kind, name in (("groups", "without torch (light_worker.py)"), ("groups, torch", "with torch (toy.py)")):
        if measured := data.get(kind):
            text += [f"## Real groups, {name}: steps of {scale_groups.STEP_S:g} s"]
            text += [f"{size} groups: {told(one['conditions'])}" for size, one in measured.items()]
            for stage in ("start", "calm", "kills"):
                rows = {size: _stage(one["rows"], stage) for size, one in measured.items()}
                text += [f"### {stage}", across(rows, "groups", "")]
    if slurm := data.get("slurm"):
        text += ["## One more srun, while so many steps run", told(slurm["conditions"])]
        text += [across(slurm["rows"], "running steps")]
    if core := data.get("core"):
        text += ["## The pure core: CPU milliseconds", told(core["conditions"]), across(core["rows"], "groups")]
        lines = f"{core['lines']:,} lines"
        text += [f"## A journal of {lines}: CPU seconds", across(core["journal"], "groups")]
    return "\n\n".join(line.strip() for line in text) + "\n"


def _stage(rows: Mapping[str, Mapping[str, float]], stage: str) -> Mapping[str, float]:
    """Return the measures of one stage; those of all kills together, with the kill in their names."""
    if stage != "kills":
        return rows[stage]
    kills = {name: row for name, row in rows.items() if name.startswith("kill ")}
    short = {name: "kill all but one" if "all but one" in name else name for name in kills}
    return {f"{short[name]}: {key}": value for name, row in kills.items() for key, value in row.items()}


def picture(data: Mapping[str, Any]) -> str:
    """Return bars: the controller's share of a core by the number of groups."""
    shares = [
        Bar(f"{size} groups, {kind}", (one["rows"]["calm"]["controller, CPU %"],), ours=True)
        for kind in ("groups", "groups, torch")
        for size, one in data.get(kind, {}).items()
    ]
    longest = max((bar.values[0] for bar in shares), default=1.0)
    return bars("The controller's share of one core, training in peace", "percent", 1.2 * longest or 1.0, shares)


def put(data: Mapping[str, Any]) -> None:
    """Write the results so far."""
    save(FOLDER / f"{NAME}.json", data)
    (FOLDER / f"{NAME}.md").write_text(markdown(data))
    (FOLDER / f"{NAME}.svg").write_text(picture(data))


def core_rows(sizes: Sequence[int], lines: int) -> dict[str, Any]:
    """Return the costs of the pure core and of the journal."""
    gc.set_threshold(*COLLECT_GARBAGE_AFTER)  # as in the controller
    return {
        "rows": {str(size): core_scale.measure(size) for size in sizes},
        "journal": {str(size): core_scale.measure_journal(size, lines) for size in sizes},
        "lines": lines,
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", choices=PARTS, nargs="+", default=PARTS)
    parser.add_argument("--groups", type=int, nargs="+", default=SIZES, help="how many real groups")
    parser.add_argument("--torch", action="store_true", help="workers with torch and collectives")
    parser.add_argument("--kills", type=int, default=1, help="how often each kind of kill is done; the median is kept")
    parser.add_argument("--calm-s", type=float, default=60.0, help="how long training in peace is watched")
    parser.add_argument("--core-groups", type=int, nargs="+", default=core_scale.SIZES)
    parser.add_argument("--lines", type=int, default=core_scale.LINES, help="lines of the journal")
    parser.add_argument("--table", action="store_true", help="write the tables of an earlier measurement again")
    options = parser.parse_args(argv)
    path = FOLDER / f"{NAME}.json"
    data: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    work: dict[str, Callable[[], None]] = {
        "groups": lambda: measure_groups(data, options),
        "slurm": lambda: data.update(
            slurm={"conditions": conditions(), "rows": _named(scale_groups.measure_sruns(STEPS))}
        ),
        "core": lambda: data.update(core={"conditions": conditions(), **core_rows(options.core_groups, options.lines)}),
    }
    for part in () if options.table else options.parts:
        work[part]()
        put(data)
    put(data)
    print(markdown(data))
    return 0


def _named(rows: Mapping[int, Mapping[str, float]]) -> dict[str, Mapping[str, float]]:
    return {str(size): row for size, row in rows.items()}


def measure_groups(data: dict[str, Any], options: argparse.Namespace) -> None:
    """Measure runs of real groups, and write each when it is done."""
    kind = "groups, torch" if options.torch else "groups"
    for size in options.groups:
        print(f"{size} groups: about {2 + size * (0.3 if options.torch else 0.1):.0f} minutes", file=sys.stderr)
        under = conditions()
        rows = scale_groups.measure(size, options.kills, options.calm_s, options.torch)
        found = data.get(kind, {}) | {str(size): {"conditions": under, "rows": rows}}
        data[kind] = dict(sorted(found.items(), key=lambda item: int(item[0])))
        put(data)


if __name__ == "__main__":
    sys.exit(main())
