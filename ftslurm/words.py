"""How counts, names and durations are said to people, in one way everywhere. Pure; it imports nothing of ftslurm."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

# --- counts -----------------------------------------------------------------------------------------------------------


def by_count(count: float, one: str, many: str) -> str:
    """Return the words that agree with a count: "is" for 1, "are" for 0 and 2."""
    return one if count == 1 else many


def plural(count: int, noun: str) -> str:
    """Return "1 group", "2 groups"."""
    return f"{count} {by_count(count, noun, f'{noun}s')}"


def every(groups: int) -> str:
    """Return what all groups of a run are called."""
    return {1: "the group", 2: "both groups"}.get(groups, f"all {groups} groups")


def speed(steps_per_s: float) -> str:
    """Format steps per second: 12.3, or 0.017 for a training with one step a minute."""
    return f"{steps_per_s:.1f}" if steps_per_s >= 0.95 else f"{steps_per_s:.2g}"


# --- lists ------------------------------------------------------------------------------------------------------------


def few(items: Sequence[object], most: int = 3, more: str = "more", between: str = ", ") -> str:
    """Return the first names, and how many more there are: "a, b, c and 4 more"; "no node" of none."""
    if len(items) <= most + 1:
        return between.join(map(str, items)) or "no node"
    gap = " " if between == ", " else between
    return f"{between.join(map(str, items[:most]))}{gap}{rest(items, most, more)}"


def rest(items: Sequence[object], shown: int, more: str = "more") -> str:
    """Return how many there are beside those that are shown: "and 4 more"."""
    return f"and {len(items) - shown} {more}"


def listed(items: Iterable[object], last: str = "and") -> str:
    """Return all names: "a, b and c", or "a or b"."""
    *others, one = map(str, items)
    return f"{', '.join(others)} {last} {one}" if others else one


def spans(numbers: Iterable[int]) -> str:
    """Format numbers as spans: [0, 1, 2, 5] -> "0-2, 5"."""
    found: list[list[int]] = []
    for n in sorted(set(numbers)):
        if found and found[-1][1] == n - 1:
            found[-1][1] = n
        else:
            found.append([n, n])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in found)


# --- suggestions ------------------------------------------------------------------------------------------------------


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the one of the known words that is probably meant; None: none is near."""
    import difflib  # only for who has made a mistake

    return next(iter(difflib.get_close_matches(word, list(known), n=1)), None)


def meant(name: str) -> str:
    """Ask whether this is meant."""
    return f"did you mean {name}?"


def offer(word: str, known: Iterable[str]) -> str:
    """Ask whether the nearest of the known words is meant, and list them all: "did you mean a? There are: a, b"."""
    known = list(dict.fromkeys(known))
    near = nearest(word.lower(), known)
    return f"{f'{meant(near)} There' if near else 'there'} are: {', '.join(known)}"


# --- durations --------------------------------------------------------------------------------------------------------


def seconds(value: float | None) -> str:
    """Format a duration with useful precision: 0.07 s, 2.1 s, 48 s, 3 min 20 s, 5 h 2 min."""
    if value is None:
        return "-"
    if value < 0.01:
        return "under 0.01 s"
    if value < 0.95:
        return f"{value:.2g} s"
    if value < 9.95:
        return f"{value:.1f} s"
    whole = round(value)
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def about(value: float) -> str:
    """Format a duration in its largest unit: 45 s, 12 min, 5 h, 3 d."""
    if value < 120:
        return f"{max(0, round(value))} s"
    minutes = round(value / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h" if minutes < 2880 else f"{minutes // 1440} d"


def clock(value: float) -> str:
    """Format a duration for a display that is redrawn often: 0:07, 12:40, 1:02:03."""
    minutes, second = divmod(max(0, round(value)), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"
