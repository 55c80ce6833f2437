"""A checkpoint that another user has planted is not unpickled, however checkpoint.dir is spelled."""

from __future__ import annotations

import zlib
from pathlib import Path

import loaded
import pytest
from harness import SCRIPTS
from victim import Stranger

from ftslurm.checkpoint import layout
from ftslurm.checkpoint.layout import Writer

DATA = "data-00000005-run-0-0-1"


@pytest.mark.parametrize("form", ["{}", "file://{}", "local://{}", "file:{}", "dir::file://{}", "file://::{}"])
def test_a_strangers_checkpoint_is_never_unpickled(
    form: str, public_path: Path, tmp_path: Path, stranger: Stranger, monkeypatch: pytest.MonkeyPatch
) -> None:
    public_path.chmod(0o777)
    loot, planted = tmp_path / "loot", public_path / "planted"
    loot.mkdir(mode=0o755)
    stranger.attack("plant", run=str(planted), files={"x": "PAYLOAD"}, folder=str(loot), pipes=[])
    size = (planted / "x").stat().st_size
    names = ("tree.pickle", ".metadata")
    facts = dict.fromkeys(names, (size, [zlib.crc32((planted / "x").read_bytes())]))
    files = {f"{DATA}/{name}": "PAYLOAD" for name in names}
    files["step-00000005.json"] = layout.manifest(5, Writer("run", 0, 0), DATA, facts).decode()
    stranger.attack("plant", run=str(planted), files=files, folder=str(loot), pipes=[])
    monkeypatch.chdir(tmp_path)
    done = loaded.start(
        SCRIPTS / "restoring.py", form.format(planted), WORLD_SIZE="1", FTSLURM_RUN_DIR=str(tmp_path)
    ).result()
    assert not list(loot.iterdir()), f"the stranger's pickle ran\n{done.stdout}{done.stderr}"
    assert done.returncode != 0, "a training that had a checkpoint began at step 0"
