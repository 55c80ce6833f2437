"""Commands to a running controller: each is read once, in order, and only from the run's owner."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from unittest import mock

import commands_left
import pytest
from full_disk import full_disk

from ftslurm.errors import EnvironmentProblem
from ftslurm.run import inbox


def test_what_is_put_is_taken_once_with_its_author(weird_tmp_path: Path) -> None:
    inbox.put(weird_tmp_path, "stop")
    (command,) = commands_left.take(weird_tmp_path)
    assert command["what"] == "stop"
    assert command["by"] == os.getuid()
    assert commands_left.take(weird_tmp_path) == []
    assert list(weird_tmp_path.iterdir()) == []


def test_fields_travel_with_the_command(tmp_path: Path) -> None:
    inbox.put(tmp_path, "inject", fault="kill", group=1)
    (command,) = commands_left.take(tmp_path)
    assert (command["fault"], command["group"]) == ("kill", 1)


def test_commands_are_taken_in_the_order_in_which_they_were_given(tmp_path: Path) -> None:
    for n in range(20):
        inbox.put(tmp_path, "stop", n=n)
    assert [command["n"] for command in commands_left.take(tmp_path)] == list(range(20))


def test_an_inbox_that_cannot_be_read_at_the_moment_is_empty(tmp_path: Path) -> None:
    assert commands_left.take(tmp_path / "away") == []


def test_a_command_for_a_run_that_is_gone_is_told_to_its_author(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match=r"could not be told to stop.*/away: No such file"):
        inbox.put(tmp_path / "away", "stop")


def test_a_command_for_which_there_is_no_room_is_told_to_its_author(tmp_path: Path) -> None:
    with full_disk(tmp_path / "disk") as disk:
        with pytest.raises(EnvironmentProblem, match=r"could not be told to inject.*/disk: No space left"):
            inbox.put(disk, "inject", fault="kill")
        assert commands_left.take(disk) == []


@pytest.mark.parametrize("text", ["", "not json", "[]", "{}", '{"what": 7}', '{"what"', "\0" * 10, '"stop"'])
def test_rubbish_is_passed_over_and_hides_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "0.json").write_text(text)
    inbox.put(tmp_path, "stop")
    assert [command["what"] for command in commands_left.take(tmp_path)] == ["stop"]
    assert commands_left.take(tmp_path) == []


def test_bytes_that_are_no_text_and_folders_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "0.json").write_bytes(b"\xff\xfe")
    (tmp_path / "1.json").mkdir()
    (tmp_path / "2.json").symlink_to(tmp_path / "nowhere")
    inbox.put(tmp_path, "stop")
    assert [command["what"] for command in commands_left.take(tmp_path)] == ["stop"]


def test_a_command_that_is_still_being_written_is_left_alone(tmp_path: Path) -> None:
    part = tmp_path / ".17.json.4711.part"
    part.write_text('{"what": "stop"')
    assert commands_left.take(tmp_path) == []
    assert part.exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a file of somebody else's")
def test_somebody_elses_command_is_not_obeyed(tmp_path: Path) -> None:
    inbox.put(tmp_path, "stop")
    (path,) = tmp_path.iterdir()
    os.chown(path, 65534, 65534)
    assert commands_left.take(tmp_path) == []


def test_folders_cost_one_listing_and_a_flood_of_files_is_taken_in_pieces(tmp_path: Path) -> None:
    for n in range(3000):
        (tmp_path / f"{n:05}.json").mkdir()
    for n in range(3 * inbox.MOST_AT_ONCE):
        (tmp_path / f"0{n:05}.json").write_text("x")
    inbox.put(tmp_path, "stop")
    looks = []
    while not (found := commands_left.take(tmp_path)):
        looks.append(sum(not path.is_dir() for path in tmp_path.iterdir()))
        assert len(looks) < 10
    assert [command["what"] for command in found] == ["stop"]
    assert [before - after for before, after in itertools.pairwise(looks)] == [inbox.MOST_AT_ONCE] * (len(looks) - 1)
    opened: list[object] = []
    with mock.patch.object(inbox.owned_files, "open_file", opened.append):
        assert commands_left.take(tmp_path) == []
    assert not opened, "folders are not opened at each look"
