"""How many RPCs a run may make to its scheduler: questions wait while there were many in the last minutes."""

from __future__ import annotations

from math import inf

from ftslurm.protocol.value_class import Value

MINUTE_S, LONG_S = 60.0, 300.0
LIMITS = ((MINUTE_S, 30), (LONG_S, 60))  # at most so many in so many seconds


class Calls(Value):
    """The calls of the last LONG_S seconds: when each was made, and how many RPCs it took."""

    made: tuple[tuple[float, int], ...] = ()

    def plus(self, now: float, rpcs: int) -> Calls:
        """Return these calls with another one."""
        return Calls((*(call for call in self.made if call[0] > now - LONG_S), (now, rpcs)))

    def since(self, time: float) -> int:
        """Return the number of RPCs after a time."""
        return sum(rpcs for at, rpcs in self.made if at > time)

    def fit_at(self, rpcs: int, share: float) -> float:
        """Return from when on so many RPCs more stay within this share of LIMITS."""
        when = -inf
        for seconds, most in LIMITS:
            sum_ = rpcs
            for at, before in reversed(self.made):
                sum_ += before
                if sum_ > most * share:
                    when = max(when, at + seconds)
                    break
        return when
