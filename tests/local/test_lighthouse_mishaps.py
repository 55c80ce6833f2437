"""Our Lighthouse where nothing can be written: it serves all the same, and so does its successor."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path

from full_disk import full_disk, make_room
from lighthouse_process import LighthouseProcess
from torchft.coordination import LighthouseClient


def test_on_a_full_disk_it_serves_and_writes_down_what_it_knows_once_there_is_room(tmp_path: Path) -> None:
    with full_disk(tmp_path / "disk") as disk:
        lighthouse = LighthouseProcess(disk)
        try:
            for step in range(2):
                client = LighthouseClient(lighthouse.url, timedelta(seconds=10))
                answer = client.quorum("a", timedelta(seconds=20), "", "", step, 1, False)
                assert [member.step for member in answer.participants] == [step]
                lighthouse.kill()
                lighthouse.start()
            lighthouse.order("member", group=0, attempt=0, store="127.0.0.1:29500")
            make_room(disk)
            deadline = time.monotonic() + 15
            while not (disk / "lighthouse.json").exists() and time.monotonic() < deadline:
                time.sleep(0.1)
            assert "29500" in (disk / "lighthouse.json").read_text()
            lighthouse.wait_for_line("all is written again")
        finally:
            lighthouse.kill()
