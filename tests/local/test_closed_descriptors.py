"""Scripts that close descriptors which they have not opened, as programs do that become daemons."""

from __future__ import annotations

from harness import Backend

ALL = "import os\nos.closerange(3, 1024)\n"
FORKS = """
import os
if child := os.fork():
    os.waitpid(child, 0)
else:
    os.setsid()
    if os.fork():
        os._exit(0)
    os.closerange(0, 1024)
    os._exit(0)
"""


def test_a_daemon_that_closes_its_copies_harms_nobody(local: Backend) -> None:
    local.start("groups.count=1", script=local.script(FORKS)).finish()


def test_a_script_that_closes_them_and_fails_has_failed(local: Backend) -> None:
    script = local.script(f"{ALL}raise RuntimeError('on purpose')\n")
    run = local.start("groups.count=1", "restart.max_per_group=0", script=script).finish(code=1)
    assert "on purpose" in str(run.named("step_exited", group=0)[0]["error"])
