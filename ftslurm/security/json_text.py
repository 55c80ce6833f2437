"""Reads untrusted JSON: parses it without raising, checks values, and shortens them for a log.

Deep nesting is refused here, because later operations on a value (comparing, printing, writing) recurse into it.
"""

from __future__ import annotations

import json
import reprlib
from typing import Any, TypeGuard

MOST = 2**53  # larger whole numbers are refused: other readers of JSON do not keep them exactly
DEEPEST = 20  # levels of lists and mappings; our own files have at most five


def read_object(text: bytes | str) -> dict[str, Any] | None:
    """Parse a JSON object. Return None for other values, invalid JSON and more than DEEPEST levels."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    opened = text.count(b"{") + text.count(b"[") if isinstance(text, bytes) else text.count("{") + text.count("[")
    return None if opened > DEEPEST and _deeper(value, DEEPEST) else value


def _deeper(value: object, levels: int) -> bool:
    """Return whether a value has more levels of lists and mappings than `levels`."""
    if not isinstance(value, (dict, list)):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return levels < 1 or any(_deeper(item, levels - 1) for item in inner)


def is_whole(value: object) -> TypeGuard[int]:
    """Return whether a value is a whole number between -MOST and MOST; True and False are not."""
    return isinstance(value, int) and not isinstance(value, bool) and -MOST < value < MOST


def is_finite(value: object) -> TypeGuard[int | float]:
    """Return whether a value is a number between -MOST and MOST; NaN, the infinities, True and False are not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -MOST < value < MOST


def brief(value: object) -> str:
    """Return a value as a short text for a log line, for a value of any length or depth."""
    return reprlib.repr(value)
