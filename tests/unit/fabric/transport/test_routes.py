"""By which interface a port leaves; what the kernel says and does is in tests/real/fabric/test_routes.py."""

from __future__ import annotations

import pytest

from fairlead.fabric.transport.routes import LOOPBACK, Hop, Leave, leave

ETH1, ETH2 = 3, 5


@pytest.mark.parametrize(
    ("own", "theirs", "free", "bound", "how"),
    [
        (ETH1, 0, Hop(ETH1), Hop(ETH1), Leave.BOUND),  # the first NIC of a subnet
        (ETH2, 0, Hop(ETH1), Hop(ETH2), Leave.BOUND),  # another one
        (ETH2, 0, Hop(0), Hop(0), Leave.BOUND),  # routes of several next hops
        (ETH2, 0, Hop(ETH1), None, Leave.ASTRAY),
        (ETH2, 0, Hop(ETH2), None, Leave.AS_ROUTED),  # routed by source
        (ETH2, 0, Hop(0), None, Leave.AS_ROUTED),
        (ETH2, 0, None, None, Leave.AS_ROUTED),  # no way at all: told by who sends
        (0, 0, Hop(ETH1), None, Leave.AS_ROUTED),  # an address of no interface (ip route add local)
        (LOOPBACK, 0, Hop(ETH1), None, Leave.AS_ROUTED),  # one that is routed to this host (anycast)
        (LOOPBACK, LOOPBACK, Hop(LOOPBACK, is_local=True), None, Leave.AS_ROUTED),
        (ETH1, ETH1, Hop(LOOPBACK, is_local=True), None, Leave.AS_ROUTED),
        (ETH1, LOOPBACK, Hop(LOOPBACK, is_local=True), None, Leave.ACROSS),
        (ETH1, ETH2, Hop(LOOPBACK, is_local=True), None, Leave.ACROSS),
        (ETH1, 0, Hop(LOOPBACK, is_local=True), None, Leave.ACROSS),
    ],
)
def test_a_port_is_bound_where_its_interface_leads_to_the_peer_and_nowhere_else(
    own: int, theirs: int, free: Hop | None, bound: Hop | None, how: Leave
) -> None:
    assert leave(own, theirs, free, bound) is how
