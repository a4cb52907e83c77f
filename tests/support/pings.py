"""Pings over a scripted fabric: what the nodes would say of it, for the judge of `fairlead fabric ping`."""

from __future__ import annotations

import math
import random

from fairlead.preflight.pairs.paths import Paths
from fairlead.preflight.pairs.pinged import FLOWS, Plan, Seen, plan_of
from fairlead.preflight.pairs.steered import T0_ALONE
from fairlead.spec import usid
from support.fabric_draws import Effect, Fabric

WINDOWS = 4
EACH = 75
RTT_NS = 80_000


def steered(num_t0: int, per_t0: int, num_t1: int, num_planes: int) -> Plan:
    nodes = [f"n{i}" for i in range(num_t0 * per_t0)]
    seats = {n: (i // per_t0, i % per_t0) for i, n in enumerate(nodes)}
    planes = range(1, num_planes + 1)
    paths = Paths(
        labels=("fabric", *(f"plane {p - 1}" for p in planes)),
        addresses={
            n: ("fdfa::1", *(str(usid.port_address(p - 1, *seat)) for p in planes)) for n, seat in seats.items()
        },
        groups={n: t0 for n, (t0, _) in seats.items()},
        switches={n: ("", *(f"p{p - 1}/t0-{t0}" for p in planes)) for n, (t0, _) in seats.items()},
        t1=num_t1,
        seats=seats,
        planes={p: p - 1 for p in planes},
    )
    return plan_of(nodes, paths)


def by_ports(num_nodes: int, num_rails: int) -> Plan:
    nodes = [f"n{i}" for i in range(num_nodes)]
    labels = ("address", *(f"rail {r}" for r in range(num_rails)))
    return plan_of(
        nodes, Paths(labels, {n: tuple(f"10.{r}.0.{i + 1}" for r in range(num_rails + 1)) for i, n in enumerate(nodes)})
    )


def fabric_of(plan: Plan, num_planes: int, seed: int) -> Fabric:
    t0_of = tuple(plan.steering.seats[i][0] for i in range(len(plan.nodes))) if plan.steering.seats else ()
    return Fabric(len(plan.nodes), num_planes, seed=seed, t0_of=t0_of, num_t1=plan.steering.t1)


def _lost(rng: random.Random, num: int, share: float) -> int:
    return sum(rng.random() < share for _ in range(num)) if share else 0


def drawn(plan: Plan, fabric: Fabric, each: int = EACH) -> dict[int, Seen]:
    """What the nodes would say: each packet meets the links of its way and the ports at its ends, there and back."""
    rng = random.Random(fabric.seed)
    out = {}
    for number, ping in enumerate(plan.pings):
        met = []
        for src, dst in ((ping.src, ping.dst),) if ping.is_loop else ((ping.src, ping.dst), (ping.dst, ping.src)):
            own = [fabric.effects.get((src, dst, ping.path), Effect())]
            if ping.t1 not in (None, T0_ALONE):  # a loop meets its link on the way up and down
                own += [fabric.links.get((ping.path, fabric.t0_of[n], ping.t1), Effect()) for n in (src, dst)]
            met.append(own)
        loss = [1 - math.prod(1 - e.loss for e in own) for own in met]
        if any(e.dark and ping.flow < e.dark * FLOWS for own in met for e in own):
            loss[0] = 1.0
        delay = max(e.delay for own in met for e in own)
        heard, back, rtt, big = [], [], [], [WINDOWS, 0, 0]
        shrinks = [any(e.full_lost and e.loss < 1 for e in own) for own in met]
        for _ in range(WINDOWS):
            there = each - _lost(rng, each, loss[0])
            returned = there if ping.is_loop else there - _lost(rng, there, loss[1])
            is_there = not shrinks[0] and rng.random() >= loss[0]
            big[1] += is_there
            big[2] += is_there and (ping.is_loop or (not shrinks[1] and rng.random() >= loss[1]))
            heard.append(there)
            back.append(returned)
            rtt.append(int(RTT_NS * delay * (1 + 0.1 * rng.random())) if returned else 0)
        out[number] = Seen(
            (each,) * WINDOWS, tuple(heard), tuple(back), tuple(rtt), big=(big[0], big[1], big[2]), big_bytes=8972
        )
    return out
