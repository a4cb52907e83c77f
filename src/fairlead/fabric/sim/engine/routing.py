"""Which port a switch sends a packet on by: computed from the shape and the packet, never looked up.

    two tiers     ports of a T0: its NICs, then its uplinks; of a T1: its T0s
    three tiers   ports of an aggregation switch (T1): the T0s of its pod, then its uplinks; of a core: the pods

Between a T0 and a T1, and between a T1 and a core, `bundle` parallel links may stand side by side.

Knows: the order of ports (shape.py builds the links in that order). Must not know: queues, faults, protocols.
"""

from __future__ import annotations

from typing import Any

from fairlead.fabric.sim.engine import layout as at
from fairlead.fabric.sim.engine.jit import engine, engine_inline, halves
from fairlead.fabric.sim.engine.queues import mix


@engine_inline
def egress(w: Any, node: Any, route: int, rows: int) -> int:
    """The port, counted within its node, by which a switch sends a packet on."""
    to_t0 = route & 0xFFFF
    if node[at.ND_KIND] == at.NODE_T0:
        if to_t0 == node[at.ND_INDEX]:
            return (route >> at.ROUTE_PORT_SHIFT) & 0xFFFF
        up = _choice(w, node, route, rows, w[at.W_UP0])
        return w[at.W_HOSTS] + (_around_dead_links(w, node, to_t0, up) if w[at.W_REROUTED] else up)
    pod = route >> at.ROUTE_POD_SHIFT
    if node[at.ND_KIND] == at.NODE_CORE:
        return pod * w[at.W_BUNDLE2] + _choice(w, node, route, rows, w[at.W_BUNDLE2])
    pod_t0, bundle = w[at.W_POD_T0], w[at.W_BUNDLE1]
    if pod == node[at.ND_POD]:
        return (to_t0 - pod * pod_t0) * bundle + _choice(w, node, route, rows, bundle)
    return pod_t0 * bundle + _choice(w, node, route, rows, w[at.W_UP1])


@engine_inline
def _choice(w: Any, node: Any, route: int, rows: int, num: int) -> int:
    """One of `num` equal ports: by hash of flow and entropy, salted by switch so that tiers do not choose alike; or the
    one the packet names. It names an uplink of its T0; of parallel links down it takes the twin of that one.
    """
    if num == 1:
        return 0
    path = (route >> at.ROUTE_PATH_SHIFT) & 0xFFFF
    if not w[at.W_HASHED]:
        return path if path < num else path % num
    return ((mix(node[at.ND_SALT] + (rows >> at.ROWS_FLOW_SHIFT), path) >> 30) * num) >> 32


@engine
def _around_dead_links(w: Any, node: Any, to_t0: int, up: int) -> int:
    """The next uplink whose T1 still reaches both ends, once routing has heard of the failures."""
    dead = halves(w[at.T_DEAD_LINKS])
    t0, pod_t1 = w[at.W_T0], w[at.W_UP0] // w[at.W_BUNDLE1]
    first = node[at.ND_PLANE] * (t0 // w[at.W_POD_T0]) * pod_t1 + node[at.ND_POD] * pod_t1
    for i in range(w[at.W_UP0]):
        uplink = (up + i) % w[at.W_UP0]
        row = (first + uplink // w[at.W_BUNDLE1]) * t0
        if not dead[row + node[at.ND_INDEX]] and not dead[row + to_t0]:
            return uplink
    return up
