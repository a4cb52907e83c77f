"""Memory regions and completion queues."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from fairlead.errors import LocalProtocolError
from fairlead.fabric.mrc.completion import Completion, CompletionQueue, Status, WorkOpcode
from fairlead.fabric.mrc.memory import MAX_REGIONS, NOWHERE, RESTING_KEYS, ProtectionDomain
from fairlead.fabric.transport.context import _randoms


def domain() -> ProtectionDomain:
    return ProtectionDomain(itertools.count(0xABC00000))


@pytest.mark.parametrize(
    ("offset", "length", "inside"),
    [(0, 100, True), (0, 0, True), (99, 1, True), (100, 0, True), (-1, 1, False), (0, 101, False), (100, 1, False)],
)
def test_bounds(offset: int, length: int, inside: bool) -> None:
    pd = domain()
    region = pd.register(bytearray(100), addr=1 << 20)
    assert (pd.find(region.rkey, region.addr + offset, length) is region) == inside


def test_a_packet_is_admitted_with_its_whole_message_or_not_at_all() -> None:
    pd = domain()
    region = pd.register(bytearray(100))
    assert pd.admit(region.rkey, region.addr, 100, 100) is region
    assert pd.admit(region.rkey, region.addr, 100, 1) is region
    assert pd.admit(region.rkey, region.addr, 101, 1) is None  # the rest would not fit
    assert pd.admit(region.rkey, region.addr, 4, 5) is None  # longer than it says
    assert pd.admit(1, 1, 0, 0) is NOWHERE
    assert pd.admit(1, 1, 0, 1) is None


def test_addresses_at_the_end_of_the_space_do_not_wrap() -> None:
    pd = domain()
    region = pd.register(bytearray(16), addr=(1 << 64) - 16)
    assert pd.find(region.rkey, (1 << 64) - 16, 16) is region
    assert pd.find(region.rkey, (1 << 64) - 8, 16) is None


def test_a_key_opens_its_own_region_and_only_while_it_is_registered() -> None:
    pd = domain()
    one, two = pd.register(bytearray(8)), pd.register(bytearray(8))
    assert one.rkey != two.rkey
    assert pd.find(one.rkey, two.addr, 1) is None
    assert pd.find(one.rkey ^ 1, one.addr, 1) is None
    pd.deregister(one)
    pd.deregister(one)
    assert pd.find(one.rkey, one.addr, 1) is None
    again = pd.register(bytearray(8), addr=one.addr)
    assert again.rkey != one.rkey


def test_keys_rest_after_their_region_is_gone() -> None:
    few = itertools.cycle(range(RESTING_KEYS + 1))  # a stream that repeats itself as soon as it can
    pd = ProtectionDomain(few)
    keys = set()
    for _ in range(RESTING_KEYS + 1):
        region = pd.register(bytearray(1))
        keys.add(region.rkey)
        pd.deregister(region)
    assert len(keys) == RESTING_KEYS + 1
    assert pd.register(bytearray(1)).rkey == 0  # the one that has rested longest


def test_the_key_of_a_living_region_is_never_given_again() -> None:
    pd = ProtectionDomain(itertools.chain([7], itertools.repeat(7, 50), [8]))
    old = pd.register(bytearray(1))
    new = pd.register(bytearray(1))
    assert (old.rkey, new.rkey) == (7, 8)
    assert pd.find(old.rkey, old.addr, 1) is old


def test_closing_a_region_twice_does_not_close_another_that_got_its_key_since() -> None:
    pd = ProtectionDomain(itertools.cycle(range(RESTING_KEYS + 1)))
    old = pd.register(bytearray(1))
    pd.deregister(old)
    for _ in range(RESTING_KEYS):
        pd.deregister(pd.register(bytearray(1)))
    new = pd.register(bytearray(1))
    assert new.rkey == old.rkey
    pd.deregister(old)
    assert pd.find(new.rkey, new.addr, 1) is new


def test_keys_cannot_be_guessed_from_those_seen() -> None:
    """All 32 bits of 4,096 keys of the stream that contexts use: none is fixed, counts, or follows from the last."""
    pd = ProtectionDomain(_randoms())
    regions = [pd.register(bytearray(1), addr=0) for _ in range(4096)]
    keys = [region.rkey for region in regions]
    for bit in range(32):  # six standard deviations of a fair coin
        assert abs(sum(key >> bit & 1 for key in keys) - 2048) < 6 * 32, bit
    for half in (0, 16):  # a serial number in either half would step by one
        steps = [(b >> half) - (a >> half) & 0xFFFF for a, b in itertools.pairwise(keys)]
        assert max(Counter(steps).values()) < 8
    own = set(keys)
    near = {key + step & 0xFFFFFFFF for key in keys for step in (-65_536, -1, 1, 65_536)} - own
    assert len(near) > 16_000
    assert not any(pd.admit(key, 0, 1, 1) for key in near)


def test_default_addresses_stay_within_64_bits() -> None:
    pd = domain()
    pd._serial = (1 << 24) - 3
    for _ in range(5):
        region = pd.register(bytearray(1 << 10))
        assert region.addr + region.length <= 1 << 64


def test_regions_are_bounded() -> None:
    pd = domain()
    regions = [pd.register(bytearray(1)) for _ in range(MAX_REGIONS)]
    with pytest.raises(LocalProtocolError) as caught:
        pd.register(bytearray(1))
    assert caught.value.code == "fabric/too-many-regions"
    pd.deregister(regions[3])
    pd.register(bytearray(1))


def test_read_only_memory_is_refused() -> None:
    with pytest.raises(LocalProtocolError) as caught:
        domain().register(memoryview(b"abc"))
    assert caught.value.code == "fabric/read-only-region"


def test_a_completion_always_finds_the_place_reserved_for_it() -> None:
    queue = CompletionQueue(2)
    done = [Completion(n, 1, WorkOpcode.RDMA_WRITE, Status.SUCCESS) for n in range(3)]
    queue.reserve()
    queue.reserve()
    with pytest.raises(LocalProtocolError) as caught:
        queue.reserve()
    assert caught.value.code == "fabric/queue-full"
    queue.add(done[0])
    with pytest.raises(LocalProtocolError):
        queue.reserve()
    queue.release()
    queue.reserve()
    queue.add(done[1])
    assert len(queue) == 2
    assert queue.poll(1) == [done[0]]
    queue.reserve()
    assert queue.poll() == [done[1]]
    assert queue.poll() == []
