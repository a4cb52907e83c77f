"""The simulator's packets beside those a queue pair really makes: the same size, the same class."""

from __future__ import annotations

import pytest

from fairlead.fabric.mrc import packets
from fairlead.fabric.mrc.headers import Dscp, Opcode
from fairlead.fabric.mrc.packets import Datagram
from fairlead.fabric.mrc.profile import Profile
from fairlead.fabric.sim.engine import layout as at
from fairlead.fabric.sim.kinds import NETWORK_BYTES, OPCODES, OTHERS, of_mrc
from support.mrc_pair import Link, Pair

NETWORK = NETWORK_BYTES


@pytest.fixture(scope="module")
def said() -> dict[Opcode, Datagram]:
    """A packet of each opcode, out of conversations that lose, trim and probe."""
    found: dict[Opcode, Datagram] = {}

    def tap(datagram: Datagram) -> None:
        found.setdefault(Opcode(datagram.data[0]), datagram)

    for seed in range(4):
        links = [Link(seed + i, loss=0.1, trim=0.1, tap=tap) for i in range(2)]
        pair = Pair(Profile.mrc(rto_ns=200_000), seed=seed, there=links[0], back=links[1])
        _, region = pair.b.region(400_000)
        pair.a.qp.post_write(bytes(400_000), wr_id=1, remote_addr=region.addr, rkey=region.rkey)
        pair.b.qp.set_ports(pair.now, 0b1011)
        pair.run(for_ns=20_000_000)
    return found


@pytest.mark.parametrize("kind", OPCODES)
def test_a_kind_is_as_large_as_the_packet_a_queue_pair_makes(said: dict[Opcode, Datagram], kind: int) -> None:
    opcode = OPCODES[kind]
    if opcode is Opcode.WRITE_ONLY:
        whole = next(d for o, d in said.items() if o in packets.WRITES)
        size = len(whole.data) - len(whole.payload)
    else:
        size = len(said[opcode].data)
    assert of_mrc(96).sizes[kind] == size + NETWORK
    assert of_mrc(96 + 40).sizes[kind] == size + NETWORK + 40  # an outer header is around all of them


@pytest.mark.parametrize("kind", OPCODES)
def test_a_kind_rides_in_the_class_of_the_packet_a_queue_pair_makes(said: dict[Opcode, Datagram], kind: int) -> None:
    opcode = OPCODES[kind]
    dscp = next(d for o, d in said.items() if o == opcode or (opcode is Opcode.WRITE_ONLY and o in packets.WRITES))
    dscp = dscp.path.dscp
    assert (of_mrc(96).control >> kind & 1) == (dscp == Dscp.CONTROL)
    assert (of_mrc(96).trimmable >> kind & 1) == (dscp in (Dscp.TRIMMABLE, Dscp.TRIMMABLE_RETX))


def test_roce_and_the_reference_simulator_have_their_own() -> None:
    assert set(OTHERS.sizes) == {64}
    for kinds in (OTHERS, of_mrc(96)):
        assert kinds.control >> at.KIND_PAUSE & kinds.control >> at.KIND_CNP & 1
        assert not kinds.control >> at.KIND_DATA & 1
    assert not OTHERS.control >> at.KIND_ROCE_DATA & 1
