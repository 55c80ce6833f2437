"""Install what a contender is made of, once: python benchmarks/contenders/install.py [FAMILY...]

Each family gets a virtual environment .contenders/FAMILY with only its own wheels; torch and torchft come from the
environment that runs this, so that all contenders train with the same ones and torch is not installed again.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import sysconfig
from pathlib import Path

FOLDER = Path(__file__).parents[2] / ".contenders"
FAMILIES = {  # family -> what pip installs
    "torchx": ("torchx-nightly==2026.10.26",),  # torchx 0.7.0 has no name in its list of jobs, which the runner reads
    "nvrx": ("nvidia-resiliency-ext==0.4.1",),
    "ray": ("ray[train]==2.60.0",),
}


def python(family: str) -> Path:
    """Return the interpreter of a family, installed or not."""
    return FOLDER / family / "bin/python"


def missing(family: str) -> str | None:
    """Return why a family cannot be used, in one line, or None."""
    if (FOLDER / family / "complete").exists():
        return None
    failed = FOLDER / family / "failed"
    why = failed.read_text().strip() if failed.exists() else "not installed"
    return f"{why} (python benchmarks/contenders/install.py {family})"


def versions(family: str, *packages: str) -> dict[str, str]:
    """Return package -> version, as a family's interpreter finds them."""
    code = "import sys, importlib.metadata as m; print(*(m.version(name) for name in sys.argv[1:]))"
    done = subprocess.run([python(family), "-c", code, *packages], capture_output=True, text=True, check=True)
    return dict(zip(packages, done.stdout.split(), strict=True))


def install(family: str) -> str | None:
    """Make the environment of a family; return what went wrong, in one line, or None."""
    place = FOLDER / family
    for name in ("complete", "failed"):
        (place / name).unlink(missing_ok=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", place], check=True)
    paths = sysconfig.get_paths(vars={"base": str(place), "platbase": str(place)})
    ours = sysconfig.get_paths()["purelib"]
    Path(paths["purelib"], "base.pth").write_text(f"import site; site.addsitedir({ours!r})\n")
    pip = [str(python(family)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *FAMILIES[family]]
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
        (place / "failed").write_text(f"pip install {' '.join(FAMILIES[family])} failed: {last}\n")
        return last
    (place / "complete").touch()
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("families", nargs="*", choices=[*FAMILIES, []], help="default: all that are not installed")
    args = parser.parse_args()
    for family in args.families or [name for name in FAMILIES if missing(name)]:
        print(f"{family}: {' '.join(FAMILIES[family])} ...", flush=True)
        print(f"{family}: {install(family) or 'installed'}", flush=True)


if __name__ == "__main__":
    main()
