"""Whom perftest is sent to: addresses of the address book, each its own node's, whatever ranks say.

Four nodes are threads over collectives in memory; the programs are stand-ins that write down how they were called. What
chooses addresses, agrees and starts programs is the real code.
"""

from __future__ import annotations

import ipaddress
import threading
from types import SimpleNamespace

import pytest

from fairlead.preflight.ranks.onnode import perftest
from fairlead.preflight.ranks.onnode.perftest import Perftest

torch = pytest.importorskip("torch")

BOOK = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"]
PROGRAM = """#!/bin/sh
[ "$1" = --help ] && echo "{help}" && exit
echo "$(basename $0) $*" >> {log}
"""


class Rails:
    """Collectives of one rank, over what all share."""

    def __init__(self, here, num, per_node, room, barrier):
        self.here, self.num_nodes, self.per_node, self.room, self.barrier = here, num, per_node, room, barrier
        self.torch, self.device, self.dist = torch, "cpu", self
        self.rank = -1

    def shared(self, mine):
        self.room[self.rank] = mine
        self.barrier.wait(20)
        found = [self.room[rank] for rank in sorted(self.room)]
        self.barrier.wait(20)
        return found

    def in_step(self):
        self.barrier.wait(20)

    def agreed(self, flags):
        return [all(each) for each in zip(*self.shared(list(flags)), strict=True)]

    def all_gather(self, everybody, mine):
        for place, one in zip(everybody, self.shared(mine), strict=True):
            place.copy_(one)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Programs in the PATH, devices in a folder of their own."""

    def make(help_text="--ipv6-addr  Use IPv6 address", devices=("mlx5_0", "mlx5_1")):
        for name in ("ib_write_bw", "ib_write_lat"):
            (tmp_path / name).write_text(PROGRAM.format(help=help_text, log=tmp_path / "log"))
            (tmp_path / name).chmod(0o755)
        for name in devices:
            (tmp_path / "devices" / name).mkdir(parents=True)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
        monkeypatch.setattr(perftest, "DEVICES", str(tmp_path / "devices"))
        monkeypatch.setattr(perftest, "READY_S", 0.05)

    make.log = tmp_path / "log"
    return make


def everybody(addresses=BOOK, known=None, per_node=1, devices=("mlx5_0",), lie=None):
    """(what ranks said, by rank). `lie`: (rank, what it says instead of its address)."""
    num, said, room = len(addresses), {}, {}
    barrier = threading.Barrier(num * per_node)
    errors = []

    def rank_of(rank):
        node, local = divmod(rank, per_node)
        lines = said[rank] = []
        config = {"host": addresses[0], "address": addresses[node]}
        me = SimpleNamespace(
            rank=rank, local=local, world=num * per_node, config=config, say=lambda what, **f: lines.append((what, f))
        )
        rails = Rails(node, num, per_node, room, barrier)
        rails.rank = rank
        one = Perftest(me, rails, devices, known or addresses)
        if lie and lie[0] == rank:
            one.own = ipaddress.ip_address(lie[1])
        try:
            one.run()
        except BaseException as error:  # noqa: BLE001 - told by the main thread
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=rank_of, args=(rank,)) for rank in range(num * per_node)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
    return said


def dialled(machine):
    """The last words of the clients."""
    lines = machine.log.read_text().splitlines() if machine.log.exists() else []
    return sorted(
        {words[-1] for line in lines if (words := line.split()) and words[-1][0].isdigit() and "." in words[-1]}
    )


def test_honest_nodes_are_dialled_each_by_its_own(machine):
    machine()
    said = everybody()
    assert dialled(machine) == BOOK
    assert [what for lines in said.values() for what, _ in lines] == ["perf"] * 8


@pytest.mark.parametrize("address", ["192.0.2.7", "169.254.169.254", "255.255.255.255", "2001:db8::7", "0.0.0.0"])
def test_a_third_party_is_dialled_by_nobody(machine, address):
    machine()
    said = everybody(lie=(2, address))
    assert dialled(machine) == []
    assert {(what, f["why"]) for lines in said.values() for what, f in lines} == {
        ("perf_skipped", f"the address book does not have {address}")
    }


def test_another_node_is_not_measured_in_the_place_of_one_that_says_it_is_there(machine):
    machine()
    said = everybody(lie=(2, "10.0.0.4"))
    assert dialled(machine) == []
    assert {f["why"] for lines in said.values() for _, f in lines} == {"two nodes call one address theirs: 10.0.0.4"}


def test_a_rank_of_a_node_does_not_move_its_node(machine):
    machine()
    said = everybody(BOOK[:2], known=BOOK, per_node=2, lie=(3, "10.0.0.4"))
    assert dialled(machine) == []
    assert {f["why"] for lines in said.values() for _, f in lines} == {"a node has two addresses"}


def test_bytes_that_are_an_option_stay_an_address(machine):
    """What a rank says is sixteen bytes, and becomes an address before it becomes a word."""
    machine()
    everybody(lie=(1, ipaddress.IPv6Address(b"--help;rm -rf /x")))
    assert dialled(machine) == []
    assert not machine.log.exists()


def test_ranks_that_see_different_addresses_all_stop(machine, monkeypatch):
    """The bytes pass through other ranks on their way: who is alone in what it saw must not wait."""
    machine()
    real = Rails.all_gather

    def all_gather(self, them, mine):
        real(self, them, mine)
        if self.rank == 3:
            them[0].copy_(torch.tensor(list(ipaddress.IPv6Address("::ffff:192.0.2.9").packed), dtype=torch.uint8))

    monkeypatch.setattr(Rails, "all_gather", all_gather)
    said = everybody()
    assert dialled(machine) == []
    assert {what for lines in said.values() for what, _ in lines} == {"perf_skipped"}


# ---- what is measured ------------------------------------------------------------------------------------------------

V6 = ["2001:db8::1", "2001:db8::2"]


def test_ipv6_alone_is_said_to_the_programs(machine):
    machine()
    everybody(V6, known=["2001:DB8:0::1", "2001:db8::2"])
    lines = machine.log.read_text().splitlines()
    assert all("--ipv6-addr" in line for line in lines)
    assert {line.split()[-1] for line in lines if "::" in line} == set(V6)


def test_programs_that_only_know_ipv4_are_not_started(machine):
    """perftest 4.5, as Debian 12 has it, has `--ipv6` for GIDs and nothing for where to meet."""
    machine(help_text="      --ipv6  Use IPv6 GID. Default is IPv4")
    said = everybody(V6)
    assert not machine.log.exists()
    assert {f["why"] for lines in said.values() for _, f in lines} == {
        "perftest is older than its option --ipv6-addr, and these nodes meet by IPv6"
    }


@pytest.mark.parametrize(
    ("per_node", "devices", "rails"),
    [(1, ("mlx5_0", "mlx5_1"), {0, 1}), (2, ("mlx5_0",), {0}), (2, ("mlx5_0", "mlx5_1"), {0, 1})],
)
def test_every_device_is_measured_whether_ranks_are_fewer_or_more(machine, per_node, devices, rails):
    """Four GPUs and eight ports (GB300), eight GPUs and four (many an HGX)."""
    machine()
    said = everybody(BOOK[:2], per_node=per_node, devices=devices)
    told = [(f["rail"], f["device"], f["program"]) for lines in said.values() for _, f in lines]
    assert {rail for rail, _, _ in told} == rails
    assert len(told) == 2 * 2 * len(devices)
    assert all(device == f"mlx5_{rail}" for rail, device, _ in told)


def test_the_gid_that_the_job_uses_is_measured(machine, monkeypatch):
    machine()
    monkeypatch.setenv("NCCL_IB_GID_INDEX", "3")
    everybody(BOOK[:2])
    assert all(" -x 3" in line for line in machine.log.read_text().splitlines())
