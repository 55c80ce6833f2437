"""Turns the variables by which sites give options to sbatch (SBATCH_PARTITION, ...) into settings of the run.

sbatch prefers them to the lines of a script, and a job submitted later has another environment. As settings they are
checked, shown by `ftslurm plan`, and the same for every job of the run; each sbatch is started without them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ftslurm.config import slurm_options
from ftslurm.config.schema import OWN_OPTIONS, Config, sbatch_options, set_sbatch_option
from ftslurm.errors import ConfigError

PREFIX = "SBATCH_"
# Those that people and modules set; SBATCH_QOS is --qos. Further options are settings (cluster.sbatch).
_TAKEN = {
    "ACCOUNT",
    "CLUSTERS",
    "COMMENT",
    "CONSTRAINT",
    "EXCLUDE",
    "NETWORK",
    "PARTITION",
    "QOS",
    "RESERVATION",
    "WCKEY",
}
_RENAMED = {"TIMELIMIT": "time", "REQ_SWITCH": "switches", "SEGMENT_SIZE": "segment"}


def found(environ: Iterable[str]) -> list[str]:
    """Return the names of the variables that sbatch would read, and of any that look so."""
    return sorted(name for name in environ if name.startswith(PREFIX))


def take(config: Config, environ: Mapping[str, str]) -> list[str]:
    """Set in place what the variables say and no setting does. Return a line about each that is not set already.

    Raises:
        ConfigError: a variable has a value that cannot be.
    """
    notes = list[str]()
    for variable in found(environ):
        name, value = variable.removeprefix(PREFIX), environ[variable]
        option = _RENAMED.get(name, name.lower().replace("_", "-"))
        told = sbatch_options(config.cluster).get(option)
        if name not in _TAKEN and name not in _RENAMED:  # its value may be secret (SBATCH_EXPORT)
            why = slurm_options.SBATCH.get(option) or "options of sbatch are settings (cluster.sbatch)"
            notes.append(f"{variable} is not used: {why}")
        elif not value.isprintable():
            raise ConfigError(f"{variable}={value!a:.80}: no option of sbatch has such a value")
        elif value and told is None:
            set_sbatch_option(config.cluster, option, value)
            key = option if option in OWN_OPTIONS else f"sbatch.{option}"
            notes.append(f"{variable} becomes cluster.{key}={value}")
        elif value and str(told) != value:
            notes.append(f"{variable}={value} is not used: a setting says {option}={told}")
    return notes
