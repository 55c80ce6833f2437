"""Our Lighthouse and its successor serve even if nothing can be written."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from full_disk import full_disk
from lighthouse_process import LighthouseProcess
from torchft.coordination import LighthouseClient


def test_on_a_full_disk_it_serves_and_so_does_its_successor(tmp_path: Path) -> None:
    log = tmp_path / "log"  # not on the full disk, so that it can be written
    with full_disk(tmp_path / "disk", inodes=2) as disk:  # the folder itself, and the filler
        lighthouse = LighthouseProcess(disk, log)
        lighthouse.order("member", group=0, attempt=0, store="127.0.0.1:29500")
        try:
            for step in range(2):
                client = LighthouseClient(lighthouse.url, timedelta(seconds=30))
                answer = client.quorum("a", timedelta(seconds=30), "", "127.0.0.1:29500", step, 1, False)
                assert [member.step for member in answer.participants] == [step]
                lighthouse.wait_for_line("will not know the last quorum")
                lighthouse.kill()
                log.unlink()
                lighthouse.start()
        finally:
            lighthouse.kill()
