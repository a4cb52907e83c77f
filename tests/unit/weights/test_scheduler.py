"""A spread in virtual time, by the real scheduler and the real order of sending: how long, how many messages, how many
bytes from the origin. What is compared with is arithmetic: the origin gives every byte once, every link takes every
byte.
"""

from __future__ import annotations

import time

import pytest

from fairlead.weights.scheduler import Lease, Scheduler, Survey, Take
from fairlead.weights.shape import grid, ring, width_for
from fairlead.weights.simulate import Simulated, World, simulate

LINK = 45e6
"""400 Mbit/s less its headers: what a lab's links are shaped to."""


def spread(**world) -> tuple[World, Simulated]:
    made = World(**{"link": LINK, "origin": LINK, **world})
    done = simulate(made)
    assert done.incomplete == 0
    assert done.transfers < made.chunks * len(done.done_s) * 1.02, "each byte enters a node once"
    return made, done


@pytest.mark.parametrize(
    "world",
    [
        {"nodes": 16, "chunks": 2048},
        {"nodes": 16, "chunks": 2048, "origin": 4 * LINK},
        {"nodes": 16, "chunks": 2048, "origin": LINK / 3},
        {"nodes": 16, "chunks": 2048, "fetching": 1},
        {"nodes": 16, "chunks": 2048, "fetching": 4},
        {"nodes": 8, "chunks": 512, "chunk_bytes": 1 << 20},
        {"nodes": 2, "chunks": 512},
    ],
    ids=lambda w: " ".join(f"{k}={v:g}" for k, v in w.items()),
)
def test_near_the_bound_and_one_copy_from_the_origin(world):
    made, done = spread(**world)
    assert done.took_s <= 1.03 * made.bound_s
    assert done.from_origin == made.chunks
    assert (done.orders + done.told) / made.chunks < 1.5


def test_a_thousand_nodes():
    made = World(nodes=1000, chunks=400)
    began = time.process_time()
    Scheduler(100_000, [bytearray(b"\x01" * 50_000 + bytes(50_000))] * 1000, fetching=range(1000), window=32).start()
    assert time.process_time() - began < 2, "a plan of 100,000 chunks"
    done = simulate(made)
    assert done.incomplete == 0
    assert done.took_s <= 1.15 * made.bound_s
    assert done.from_origin == made.chunks
    assert done.orders + done.told < 6 * made.chunks, "a few messages a chunk, not one a chunk and node"


def test_one_slow_node_is_late_alone():
    made, done = spread(nodes=16, chunks=1024, slow={5: 0.1})
    without = simulate(World(nodes=15, chunks=1024, link=LINK, origin=LINK)).took_s
    others = [took for node, took in done.done_s.items() if node != 5]
    assert max(others) <= 1.15 * without
    assert done.done_s[5] <= 1.1 * 10 * made.bound_s
    assert done.from_origin == made.chunks


def test_one_slow_node_where_the_origin_has_given_everything_long_before():
    """The others soon have nothing to take but what the slow one passes on: that is not what is usual."""
    _, done = spread(nodes=16, chunks=1024, origin=100 * LINK, slow={15: 0.1})
    without = simulate(World(nodes=15, chunks=1024, link=LINK, origin=100 * LINK)).took_s
    assert max(took for node, took in done.done_s.items() if node != 15) <= 1.15 * without


def test_what_a_slow_node_has_not_begun_to_fetch_goes_to_others():
    plan = scheduler(4, 64, window=8)
    given = leases(plan.start())
    plan.peers[2].slow = True
    orders = plan.returned(2, given[2][3:])
    assert not any(o.node == 2 for o in orders)
    assert plan.peers[2].leased == set(given[2][:3])
    assert set(given[2][3:]) <= set(plan.to_fetch) | {c for p in plan.peers for c in p.leased}
    plan.returned(2, given[1])
    assert plan.peers[1].leased >= set(given[1]), "what is another's stays there"


def test_nodes_that_die_cost_what_only_they_had():
    made, done = spread(nodes=16, chunks=1024, dies={5: 20.0, 9: 40.0})
    assert done.took_s <= 1.1 * made.bound_s
    assert made.chunks <= done.from_origin <= 1.05 * made.chunks


@pytest.mark.parametrize("fetching", [1, 2])
def test_where_few_are_to_fetch_another_takes_the_place_of_one_that_dies(fetching):
    made, done = spread(nodes=8, chunks=256, fetching=fetching, dies={0: 5.0})
    assert done.took_s <= 1.3 * made.bound_s
    assert done.from_origin <= 1.1 * made.chunks


def test_who_was_refused_asks_again_only_where_nobody_else_is_left():
    plan = Scheduler(16, [bytearray(16)] * 3, fetching=[0, 1], window=4)
    given = leases(plan.start())
    plan.refused(0, given[0])
    assert [p.fetches for p in plan.peers] == [False, True, False]
    plan.ended(1)
    assert [p.fetches for p in plan.peers if p.alive] == [False, True], "the one that nothing is known of"
    plan.ended(2)
    assert plan.peers[0].fetches


def test_an_origin_that_gives_nobody_anything_is_given_up_at_once():
    plan = Scheduler(64, [bytearray(64)] * 3, fetching=range(3), window=4)
    given = leases(plan.start())
    plan.fetched(0, given[0])
    plan.given_up()
    assert plan.lost == set(range(64)) - set(given[0])
    assert not plan.to_fetch
    assert not any(p.leased for p in plan.peers)


def test_two_neighbours_at_once():
    made, done = spread(nodes=16, chunks=1024, dies={5: 20.0, 6: 20.0})
    assert done.took_s <= 1.1 * made.bound_s
    assert done.from_origin <= 1.05 * made.chunks


def test_a_grid_that_loses_a_node_goes_on_as_a_ring():
    made, done = spread(nodes=64, chunks=512, dies={17: 10.0})
    assert width_for(64, 512) == 8
    assert done.took_s <= 1.5 * made.bound_s
    assert done.from_origin <= 1.05 * made.chunks


def test_who_comes_late_takes_from_the_others_alone():
    made, done = spread(nodes=16, chunks=1024, joins_s=(20.0, 30.0))
    assert done.from_origin == made.chunks
    first = [took for node, took in done.done_s.items() if node < 16]
    assert max(first) <= 1.05 * made.bound_s, "nobody waits for who is late"
    assert max(done.done_s.values()) <= max(first) + 1.1 * made.bound_s


def test_what_some_have_already_is_not_fetched():
    made, done = spread(nodes=16, chunks=1024, has={1: 500, 2: 800, 3: 1000})
    assert done.from_origin == 24
    assert done.took_s <= 1.03 * made.bound_s


def test_everything_is_there():
    done = simulate(World(nodes=4, chunks=100, has=dict.fromkeys(range(4), 100)))
    assert (done.from_origin, done.transfers, done.told) == (0, 0, 0)


def scheduler(num_nodes: int, num_chunks: int, window: int = 4) -> Scheduler:
    return Scheduler(
        num_chunks, [bytearray(num_chunks) for _ in range(num_nodes)], fetching=range(num_nodes), window=window
    )


def leases(orders) -> dict[int, tuple[int, ...]]:
    return {o.node: o.chunks for o in orders if isinstance(o, Lease)}


def test_a_chunk_is_with_one_node_at_a_time_until_that_node_is_lost():
    plan = scheduler(3, 24)
    given = leases(plan.start())
    chunks = [c for some in given.values() for c in some]
    assert len(chunks) == len(set(chunks)) == 12
    more = leases(plan.fetched(0, given[0][:2]))
    assert set(more) == {0}
    orders = plan.ended(1)
    assert {o.node for o in orders if isinstance(o, Survey)} == {0, 2}
    assert plan.fetched(0, given[0]) == [], "nothing is leased while it is not known what is left"
    assert plan.surveyed(0, bytearray(24)) == []
    has = bytearray(24)
    has[given[1][0]] = 1  # it came over before the node died
    plan.surveyed(2, has)
    left = set(plan.to_fetch)
    for peer in (plan.peers[0], plan.peers[2]):
        left |= peer.leased
    assert given[1][0] not in left
    assert set(given[1][1:]) <= left


def test_an_origin_that_refuses_one_node_is_asked_by_others_but_not_for_ever():
    plan = scheduler(3, 6, window=6)
    given = leases(plan.start())
    node, chunk = next((n, c) for n, some in given.items() for c in some)
    for _ in range(4):
        orders = plan.refused(node, [chunk])
        if plan.lost:
            break
        new = next((n for n, peer in enumerate(plan.peers) if chunk in peer.leased), None)
        while new is None:
            busy = next(n for n, peer in enumerate(plan.peers) if peer.leased and peer.fetches)
            orders = plan.fetched(busy, list(plan.peers[busy].leased))
            new = leases(orders) and next((n for n, some in leases(orders).items() if chunk in some), None)
        node = new
    assert plan.lost == {chunk}
    plan = scheduler(2, 2, window=2)
    plan.start()
    plan.refused(0, plan.peers[0].leased.copy(), final=True)
    assert len(plan.lost) == 1


def test_every_node_is_reached_from_every_other():
    for shape in (ring(range(9)), ring(range(9), slow=[3, 4]), ring(range(9), joined=[8]), ring([0, 4, 7])):
        takers = {n: [s for s, kind in sources if kind != "own"] for n, sources in shape.sources.items()}
        for start in takers:
            seen, at = set(), start
            while at not in seen and takers[at]:
                seen.add(at)
                at = takers[at][0]
            assert at in seen, f"{start} takes, step by step, from the ring"
    square = grid(12, 4)
    assert square.is_grid
    assert all(len(sources) == 2 for sources in square.sources.values())


def test_orders_for_a_ring_name_those_alone_whose_source_changes():
    plan = scheduler(8, 400)
    plan.start()
    takes = [o for o in plan.ended(3) if isinstance(o, Take)]
    assert [(t.node, t.sources) for t in takes] == [(4, ((2, "all"),))]
