"""Our Lighthouse and its successor serve even if nothing can be written."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from full_disk import full_disk, make_room
from harness import PATIENCE_S
from lighthouse_process import LighthouseProcess
from torchft.coordination import LighthouseClient


def test_on_a_full_disk_it_serves_and_writes_down_what_it_knows_once_there_is_room(tmp_path: Path) -> None:
    log = tmp_path / "log"  # not on the full disk, so that it can be written
    with full_disk(tmp_path / "disk") as disk:
        lighthouse = LighthouseProcess(disk, log)
        try:
            for step in range(2):
                client = LighthouseClient(lighthouse.url, timedelta(seconds=30))
                answer = client.quorum("a", timedelta(seconds=30), "", "", step, 1, False)
                assert [member.step for member in answer.participants] == [step]
                lighthouse.kill()
                log.unlink()
                lighthouse.start()
            lighthouse.wait_for_line("cannot be written")
            lighthouse.order("member", group=0, attempt=0, store="127.0.0.1:29500")
            lighthouse.wait_for_line("order: ")
            make_room(disk)
            lighthouse.wait_for_text(disk / "lighthouse.json", "29500", PATIENCE_S)  # it tries again every 10 s
            lighthouse.wait_for_line("all is written again")
        finally:
            lighthouse.kill()
