"""A folder stays a folder however it is spelled, and nothing of fsspec but object stores is opened."""

from __future__ import annotations

import os
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.registry import known_implementations

from ftslurm.checkpoint.places import Bucket, Folders
from ftslurm.checkpoint.store import Store
from ftslurm.config.compose import to_config
from ftslurm.config.schema import Config
from ftslurm.config.store_url import STORES, is_url, plain
from ftslurm.errors import ConfigError, EnvironmentProblem

MORE = ("FILE", "Local", "mine", "unheard-of")
FORMS = ("{}://{path}", "{}:/{path}", "{}:{path}", "{}::file://{path}", "{}://x::file://{path}", "{}://::{path}")


fsspec.register_implementation("mine", LocalFileSystem)  # as an installed package can


def configured(address: str) -> str:
    config = Config()
    config.job.script, config.run.name, config.checkpoint.dir = __file__, "mine", address
    config.cluster.kind = "local"
    return str(to_config(config).checkpoint.dir)


@pytest.mark.parametrize("protocol", sorted({*known_implementations, *MORE}))
def test_no_protocol_leads_around_the_checks_of_folders(protocol: str, tmp_path: Path) -> None:
    for form in FORMS:
        address = form.format(protocol, path=tmp_path)
        try:
            told = configured(address)
        except ConfigError:
            told = ""
        try:
            store = Store(plain(address))
        except EnvironmentProblem:
            store = None
        if store is not None and isinstance(store.files, Folders):  # not fsspec's, whose files have no owners
            # What is not meant as a URL at all is a name in this folder, for fsspec's users as for ours.
            assert store.name == (str(tmp_path) if plain(address) == str(tmp_path) else os.path.abspath(address))
            assert told == store.name
        elif told:
            assert protocol in STORES
        for each in (address, told, plain(address)):
            if is_url(each) and each.partition("://")[0] not in STORES:
                with pytest.raises(EnvironmentProblem, match=r"is neither a folder nor|two slashes"):
                    Bucket(each)


@pytest.mark.parametrize("form", ["file://{}", "local://{}", "file:{}", "local:{}", "{}"])
def test_a_folder_in_fsspecs_words_is_that_folder(form: str, tmp_path: Path) -> None:
    assert configured(form.format(tmp_path)) == str(tmp_path)
    opened = Store(plain(form.format(tmp_path)))
    assert isinstance(opened.files, Folders)
    assert opened.name == str(tmp_path)


@pytest.mark.parametrize("protocol", sorted(STORES & known_implementations.keys()))
def test_what_is_let_through_is_no_file_system_of_this_machine(protocol: str) -> None:
    assert not known_implementations[protocol]["class"].startswith("fsspec.implementations.")
    assert is_url(f"{protocol}://bucket/x")
    for chain in (f"{protocol}://b/x::file:///tmp", f"simplecache::{protocol}://b/x"):
        with pytest.raises(ConfigError, match="is neither a folder nor an object store"):
            configured(chain)
