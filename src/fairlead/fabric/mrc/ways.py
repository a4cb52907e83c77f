"""Law of steered paths: the way through its plane that an entropy value takes, where the sender can choose it.

A sender that names paths (SRv6, a simulator's source routes) gives each EV of a plane one of the plane's ways. Its EVs
go round all ways in steps from a first one; a step shares no divisor with their number, so that each way carries as
many EVs as any other, one more at most. First way and step are the queue pair's own, by chance: the EVs in rotation of
several then do not lie on the same ways. The EV in rotation, not this rule, is what moves traffic off a way.
"""

from __future__ import annotations

from math import gcd


def way_of(number: int, num_ways: int, first: int, step: int) -> int:
    """The way that EV `number` of a plane takes, 0 to num_ways - 1."""
    return (first + number * step) % num_ways


def steps(num_ways: int) -> tuple[int, ...]:
    """The steps that come by every way before they return."""
    return tuple(step for step in range(1, num_ways + 1) if gcd(step, num_ways) == 1)
