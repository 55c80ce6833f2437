"""What the values of options may be; argparse calls these, and makes one line of what they raise."""

from __future__ import annotations

import argparse
import os
import re
import time
from datetime import datetime, timedelta
from datetime import time as clock
from pathlib import Path

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}  # in seconds


def since(text: str) -> float:
    """Convert 10m, 14:30[:05] (today, or yesterday if that is to come) or an ISO time to unix seconds."""
    if ago := re.fullmatch(r"(\d{1,9})([smhd])", text):
        return time.time() - int(ago[1]) * _UNITS[ago[2]]
    try:
        if re.fullmatch(r"\d\d:\d\d(:\d\d)?", text):
            now = datetime.now()
            at = datetime.combine(now, clock.fromisoformat(text))
            return (at - timedelta(days=at > now)).timestamp()
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"no time: {text!r}; write 7d, 10m, 14:30 or 2026-11-23T14:30") from None


def folder(text: str) -> Path:
    """Convert the path of a folder that exists."""
    if not os.path.isdir(text):
        raise argparse.ArgumentTypeError(f"there is no folder {text!r}")
    return Path(text)


def count(text: str) -> int:
    """Convert a number of lines, or of seconds."""
    if not text.isdecimal() or len(text) > 9:
        raise argparse.ArgumentTypeError(f"not a number: {text!r}")
    return int(text)


def pattern(text: str) -> re.Pattern[bytes]:
    """Convert a regular expression for bytes."""
    try:
        return re.compile(text.encode())
    except (re.error, UnicodeEncodeError) as error:
        raise argparse.ArgumentTypeError(f"no regular expression: {error} in {text!r}") from None
