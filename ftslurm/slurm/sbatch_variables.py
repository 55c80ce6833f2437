"""Turns the variables by which sbatch takes options (SBATCH_PARTITION, ...) into settings of the run.

sbatch prefers them to the lines of a script, and a job submitted later has another environment. As settings they are
checked, shown by `ftslurm plan`, and the same for every job of the run; each sbatch is started without them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ftslurm.config.schema import OWN_OPTIONS, Config, sbatch_options, set_sbatch_option
from ftslurm.config.validate import check
from ftslurm.errors import ConfigError

PREFIX = "SBATCH_"
_FLAGS = {"ignore-pbs", "overcommit", "spread-job", "use-min-nodes"}  # without a value
# The options of "INPUT ENVIRONMENT VARIABLES" in sbatch(1), of Slurm 22.05 to 25.11, without those that are the run's:
# array, error, gpus-per-node, input, job-name, no-kill, open-mode, output, requeue, signal, verbose, wait.
KNOWN = {
    *("acctg-freq", "batch", "clusters", "constraint", "container", "container-id", "core-spec", "cpus-per-gpu"),
    *("delay-boot", "distribution", "exclude", "exclusive", "export", "get-user-env", "gpu-bind", "gpu-freq", "gpus"),
    *("gpus-per-task", "gres"),
    *("gres-flags", "hint", "mem", "mem-bind", "mem-per-cpu", "mem-per-gpu", "network", "nodelist", "power"),
    *("profile", "qos", "reservation", "segment", "switches", "thread-spec", "threads-per-core", "tres-bind"),
    *("tres-per-task", "wait-all-nodes", "wckey"),
} | {*OWN_OPTIONS, *_FLAGS}
# The variables that are not called as their options; SBATCH_GRES_FLAGS is --gres-flags.
_RENAMED = {"mem-per-node": "mem", "req-switch": "switches", "segment-size": "segment", "timelimit": "time"}


def found(environ: Iterable[str]) -> list[str]:
    """Return the names of the variables that sbatch would read, and of any that look so."""
    return sorted(name for name in environ if name.startswith(PREFIX))


def take(config: Config, environ: Mapping[str, str]) -> list[str]:
    """Set in place what the variables say and no setting does. Return a line about each that is not set already.

    Raises:
        ConfigError: a variable contradicts other settings, or has a value that cannot be.
    """
    return [note for variable in found(environ) if (note := _take(config, variable, environ[variable])) is not None]


def _take(config: Config, variable: str, value: str) -> str | None:
    if not value.isprintable():
        raise ConfigError(f"{variable}={value!a:.80}: no option of sbatch has such a value")
    name = variable.removeprefix(PREFIX).lower().replace("_", "-")
    option, said = _RENAMED.get(name, name), value or name in ("exclusive", "get-user-env")
    if option not in KNOWN or (option == "export" and "=" in value):  # a value may be secret
        return f"{variable} is not used: the run decides that, or sbatch has no such option (cluster.sbatch, job.env)"
    if option in _FLAGS:
        said = value in ("", "yes") or value.strip("0").isdecimal()
    if not said:
        return None
    for told in (sbatch_options(config.cluster).get(option), getattr(config.groups, option, None)):
        if told is not None:
            return None if str(told) == str(said) else f"{variable}={said} is not used: a setting says {option}={told}"
    set_sbatch_option(config.cluster, option, said)
    try:
        check(config)
    except ConfigError as error:
        raise ConfigError(f"{variable}={value}: {error}") from error
    return f"{variable} becomes cluster.{'' if option in OWN_OPTIONS else 'sbatch.'}{option}={said}"
