"""report.html: the report as one page that needs nothing else, neither a server, nor a network, nor a script.

Whatever comes from the run is escaped, and its control characters are written out; the page's policy allows its own
style and nothing that runs. docs/report.png: chromium --headless --window-size=1100,640 --screenshot=... report.html
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ftslurm.report.history import History
from ftslurm.report.picture import RECOVERING, STATES, picture
from ftslurm.report.tables import Sheet, moment
from ftslurm.security.terminal import visible

MOST_ROWS = 1000  # of a table; --json has all


def page(history: History, sheet: Sheet) -> str:
    """Return the text of report.html."""
    folder = Path(__file__).parent
    pages = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        finalize=_written,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = (folder / "page.css").read_text()
    return pages.get_template("page.html").render(
        sheet=sheet,
        picture=picture(history) if history.groups else None,
        times=f"{moment(history.begin)} to {moment(history.end)}",
        most=MOST_ROWS,
        lost=STATES[RECOVERING].colour,
        style=Markup(style),  # noqa: S704 (our own file)
        digest=base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
    )


def _written(value: object) -> object:
    """Write out the control characters of all text that is not the page's own."""
    return visible(value, lines=True) if isinstance(value, str) and not isinstance(value, Markup) else value
