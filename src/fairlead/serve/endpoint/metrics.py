"""Counts of the endpoint as text for Prometheus (exposition format 0.0.4), in base units."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class Histogram:
    """How long something took, in seconds."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._sum = 0.0

    def add(self, took_s: float) -> None:
        """One more."""
        self._counts[bisect_left(BOUNDS_S, took_s)] += 1
        self._sum += took_s

    def lines(self, name: str) -> Iterator[str]:
        """Its samples."""
        num = 0
        for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), self._counts, strict=True):
            num += count
            yield f'{name}_bucket{{le="{bound}"}} {num}'
        yield f"{name}_sum {self._sum:.6f}"
        yield f"{name}_count {num}"


class Metrics:
    """What the endpoint counts itself."""

    def __init__(self) -> None:
        self.answers: Counter[tuple[str, int]] = Counter()
        """By route and status."""
        self.refused: Counter[str] = Counter()
        """By code."""
        self.cut = 0
        """Answers that the engine began and did not end."""
        self.left = 0
        """Answers whose clients went away."""
        self.first = Histogram()
        self.whole = Histogram()

    def text(self, gauges: Mapping[str, tuple[str, float]]) -> str:
        """Everything, with `gauges` by name: help and value."""
        lines = list[str]()
        by_route = [
            (f'{{route="{route}",status="{status}"}}', n) for (route, status), n in sorted(self.answers.items())
        ]
        by_code = [(f'{{code="{code}"}}', n) for code, n in sorted(self.refused.items())]
        lines += _metric("requests_total", "counter", "Answers by route and status", by_route)
        lines += _metric("refused_total", "counter", "Requests refused here, by code", by_code)
        lines += _metric("answers_cut_total", "counter", "Answers that the engine did not end", [("", self.cut)])
        lines += _metric("clients_left_total", "counter", "Answers whose clients went away", [("", self.left)])
        for name, (what, value) in gauges.items():
            lines += _metric(name, "gauge", what, [("", value)])
        for name, what, histogram in (
            ("first_byte_seconds", "From the whole question to the first byte of the answer", self.first),
            ("request_seconds", "From the whole question to the end of the answer", self.whole),
        ):
            lines += [f"# HELP fairlead_serve_{name} {what}", f"# TYPE fairlead_serve_{name} histogram"]
            lines += histogram.lines(f"fairlead_serve_{name}")
        return "\n".join(lines) + "\n"


def _metric(name: str, kind: str, what: str, samples: Iterable[tuple[str, float]]) -> Iterator[str]:
    yield f"# HELP fairlead_serve_{name} {what}"
    yield f"# TYPE fairlead_serve_{name} {kind}"
    for labels, value in samples:
        yield f"fairlead_serve_{name}{labels} {value:g}"
