"""Tell which words of a command line choose presets, which change settings, and which are refused, before Hydra does.

Values are checked once all is composed (config/typed_values.py).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ftslurm.config.hydra_adapter import Override
from ftslurm.config.setting_names import exists, no_setting
from ftslurm.errors import ConfigError

_BASIC = "basic"  # Hydra's own sweeper and launcher


def for_hydra(overrides: Sequence[Override], folders: Sequence[Path], sweep: bool) -> list[str]:
    """Return overrides as Hydra wants them.

    A setting has ++ before it: Hydra then adds it where its mappings lack it, as with job.args.lr.

    Args:
        folders: those of presets.
        sweep: there is to be a run for each combination of values.

    Raises:
        ConfigError: there is no such setting, or Hydra must not do what an override asks for.
    """
    basic = all(one.text == _BASIC for one in overrides if one.key == "hydra/sweeper")
    words = []
    for one in overrides:
        word, key = one.word, one.key.partition("@")[0]
        if one.sweeps and not sweep:
            raise ConfigError(
                f"{word} has several values: add --multirun (-m) for one run with each, write {key}=[...] for a list, "
                f"or put quotes around a text with commas"
            )
        if key == "hydra/launcher" and one.text != _BASIC:
            raise ConfigError(
                f"{word}: ftslurm submits each run itself, to Slurm where there is one; leave the launcher out. With "
                f"-m it makes a run of each combination, and what a launcher would ask of Slurm are settings here: "
                f"cluster.partition, cluster.time, groups.nodes, groups.gpus, ... (ftslurm help scripts)"
            )
        is_preset = "/" in key or (not one.mapping and any(os.path.isdir(folder / key) for folder in folders))
        if not key.startswith("hydra.") and not is_preset:
            if not exists(key):
                raise no_setting(key)
            # A sweeper that is not Hydra's own names its parameters, in its results and its storage, as they are here.
            word = word if word.startswith("~") or (one.sweeps and not basic) else f"++{word.lstrip('+')}"
        words.append(word)
    return words
