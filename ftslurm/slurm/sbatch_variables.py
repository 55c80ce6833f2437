"""Turns the variables by which sites give options to sbatch (SBATCH_PARTITION, ...) into settings of the run.

sbatch prefers them to the lines of a script, and a job submitted later has another environment. As settings they are
checked, shown by `ftslurm plan`, and the same for every job of the run; each sbatch is started without them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ftslurm.config.schema import OWN_OPTIONS, Config, sbatch_options, set_sbatch_option
from ftslurm.errors import ConfigError

PREFIX = "SBATCH_"
# Those that people and modules set; SBATCH_QOS is --qos. Further options are settings (cluster.sbatch).
_TAKEN = {"ACCOUNT", "CLUSTERS", "CONSTRAINT", "EXCLUDE", "NETWORK", "PARTITION", "QOS", "RESERVATION", "WCKEY"}
_RENAMED = {"TIMELIMIT": "time", "REQ_SWITCH": "switches", "SEGMENT_SIZE": "segment"}


def found(environ: Iterable[str]) -> list[str]:
    """Return the names of the variables that sbatch would read, and of any that look so."""
    return sorted(name for name in environ if name.startswith(PREFIX))


def take(config: Config, environ: Mapping[str, str]) -> list[str]:
    """Set in place what the variables say and no setting does. Return a line about each that is not set already.

    Raises:
        ConfigError: a variable has a value that cannot be.
    """
    return [note for variable in found(environ) if (note := _take(config, variable, environ[variable])) is not None]


def _take(config: Config, variable: str, value: str) -> str | None:
    name = variable.removeprefix(PREFIX)
    if name not in _TAKEN and name not in _RENAMED:  # its value may be secret (SBATCH_EXPORT)
        return f"{variable} is not used: options of sbatch are settings (cluster.sbatch), and the run decides some"
    if not value.isprintable():
        raise ConfigError(f"{variable}={value!a:.80}: no option of sbatch has such a value")
    option = _RENAMED.get(name, name.lower())
    told = sbatch_options(config.cluster).get(option)
    if not value or str(told) == value:
        return None
    if told is not None:
        return f"{variable}={value} is not used: a setting says {option}={told}"
    set_sbatch_option(config.cluster, option, value)
    return f"{variable} becomes cluster.{'' if option in OWN_OPTIONS else 'sbatch.'}{option}={value}"
