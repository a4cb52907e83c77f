"""How soon a spread can end, and from which rates that follows. Pure.

A rate is what the cluster file says; else what was read on the nodes, or what the VM size has by its documentation.
What nobody says is no bound, and the forecast says that it was left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fairlead.base.units import duration, rate
from fairlead.weights.planned import Plan, Rates, bound_s, predicted_s
from fairlead.weights.table import Weights


@dataclass(frozen=True, kw_only=True)
class Assumed:
    """One rate, and who says so."""

    what: str
    bytes_s: float
    """0: not known."""
    source: str

    def __str__(self) -> str:
        return (
            f"{self.what} {rate(8 * self.bytes_s)} ({self.source})" if self.bytes_s else f"{self.what}: {self.source}"
        )


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Seconds, and what they rest on."""

    bound_s: float
    predicted_s: float
    assumed: tuple[Assumed, ...]
    left_bytes: int
    """Bytes that the node with the least still has to take."""
    from_origin_bytes: int

    @property
    def is_known(self) -> bool:
        """Whether any rate is known."""
        return any(a.bytes_s for a in self.assumed)

    def body(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "bound_s": round(self.bound_s, 3) if self.is_known else None,
            "predicted_s": round(self.predicted_s, 3) if self.is_known else None,
            "from_origin_bytes": self.from_origin_bytes,
            "rates": [{"of": a.what, "bytes_s": a.bytes_s or None, "source": a.source} for a in self.assumed],
        }

    def text(self) -> str:
        """For people."""
        by = "; ".join(str(a) for a in self.assumed)
        if not self.left_bytes:
            return "nothing is left to take"
        if not self.is_known:
            return f"no time can be foretold: {by}"
        return f"about {duration(self.predicted_s)}, and no way sooner than {duration(self.bound_s)}: {by}"


def forecast(
    plan: Plan,
    *,
    num_nodes: int,
    left_bytes: int,
    from_origin_bytes: int,
    said: Weights,
    max_bandwidth: float,
    links: Mapping[str, tuple[float, str]],
) -> Forecast:
    """What to expect. `links`: node -> (bytes a second of the link that the others reach it by, who says so);
    `max_bandwidth` in bytes a second, 0 for none.
    """
    origin = said.origin_gbps * 1e9 / 8
    if max_bandwidth and (not origin or max_bandwidth < origin):
        from_ = Assumed(what="origin", bytes_s=max_bandwidth, source="--max-bandwidth")
    elif origin:
        from_ = Assumed(what="origin", bytes_s=origin, source="weights.origin_gbps")
    else:
        from_ = Assumed(what="origin", bytes_s=0.0, source="not known, weights.origin_gbps would say")
    if said.link_gbps:
        link = Assumed(what="link", bytes_s=said.link_gbps * 1e9 / 8, source="weights.link_gbps")
    elif known := sorted((r, why, name) for name, (r, why) in links.items() if r):
        link = Assumed(what="link", bytes_s=known[0][0], source=f"{known[0][1]} of {known[0][2]}, the slowest")
    else:
        link = Assumed(what="link", bytes_s=0.0, source="not known, weights.link_gbps would say")
    if said.write_mb_s:
        write = Assumed(what="disk", bytes_s=said.write_mb_s * 1e6, source="weights.write_mb_s")
    else:
        write = Assumed(what="disk", bytes_s=0.0, source="not known, weights.write_mb_s would say")
    # what leaves the origin bounds by its rate, what the emptiest node lacks by the others
    first = bound_s(from_origin_bytes, Rates(origin=from_.bytes_s))
    rates = Rates(link=link.bytes_s, write=write.bytes_s)
    return Forecast(
        bound_s=max(first, bound_s(left_bytes, rates)),
        predicted_s=max(first, bound_s(left_bytes, rates))
        + predicted_s(plan, left_bytes, num_nodes, rates)
        - bound_s(left_bytes, rates),
        assumed=(from_, link, write),
        left_bytes=left_bytes,
        from_origin_bytes=from_origin_bytes,
    )
