"""report.html: the report as one page that needs nothing else, neither a server, nor a network, nor a script.

Whatever comes from the run is escaped, and its control characters are written out; the page's policy allows its own
style and nothing that runs. docs/report.png: chromium --headless --hide-scrollbars --window-size=1100,640
--screenshot=... report.html
"""

from __future__ import annotations

import base64
import hashlib
import io
from importlib import resources

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from ftslurm.monitor.status import RunStatus
from ftslurm.monitor.table import SafeConsole
from ftslurm.report.accounting import Accounts
from ftslurm.report.history import History
from ftslurm.report.picture import picture
from ftslurm.report.tables import facts, lines, moment, outcome, tables
from ftslurm.security.terminal import visible

MOST_ROWS = 300  # of a table; --json has all
_WIDTH = 140  # columns


def page(status: RunStatus, history: History, accounts: Accounts) -> str:
    """Return the text of report.html."""
    folder = resources.files("ftslurm.report")
    pages = Environment(
        loader=FunctionLoader(lambda name: (folder / name).read_text()),
        autoescape=True,
        finalize=_written,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    console = SafeConsole(file=io.StringIO(), record=True, width=_WIDTH, markup=False, emoji=False, highlight=False)
    console.print(tables(history, accounts, MOST_ROWS))
    style = (folder / "page.css").read_text() + console.export_html(clear=False, code_format="{stylesheet}")
    return pages.get_template("page.html").render(
        run_id=status.run_id,
        outcome=outcome(status, history),
        lines=lines(status, history) if history.groups else (),
        times=f"{moment(history.begin)} to {moment(history.end)}",
        facts=facts(accounts),
        picture=picture(history) if history.groups else None,
        tables=Markup(console.export_html(code_format="{code}")),  # noqa: S704 (rich has escaped it)
        style=Markup(style),  # noqa: S704 (our own file)
        digest=base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
    )


def _written(value: object) -> object:
    """Write out the control characters of all text that is not the page's own."""
    return visible(value, lines=True) if isinstance(value, str) and not isinstance(value, Markup) else value
