"""What NCCL and RCCL print of their network, version by version, read as one value."""

from __future__ import annotations

import pytest

from fairlead.preflight.ranks.nccl import parse
from fairlead.preflight.ranks.onnode.nccllog import digest

# The forms below follow NVIDIA/nccl src/init.cc, src/transport/{net,net_ib,p2p,shm,coll_net}.cc (plugin/net.cc since
# 2.27) and aws-ofi-nccl src/nccl_ofi_net.c, as issues and logs of many sites show them printed.
P = "node0:523:564 [0] NCCL INFO "
OLD = [
    "NCCL version 2.4.7+cuda10.0",
    P + "NET/IB : Using [0]mlx5_0:1/IB ; OOB ib0:192.168.11.1<0>",
    P + "Ring 00 : 3 -> 4 [receive] via NET/IB/0/GDRDMA",
    P + "Ring 00 : 0[0] -> 1[1] via P2P/IPC",
]
V210 = [
    P + "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB ; OOB eth0:10.0.0.4<0>",
    P + "Using network IB",
    P + "Channel 00 : 9[1b000] -> 0[c000] [receive] via NET/IB/1/GDRDMA/Shared",
]
V220 = [
    P + "NET/IB : Using [0]mlx5_ib0:1/IB/SHARP [1]mlx5_ib1:1/IB/SHARP [2]mlx5_an0:1/RoCE [RO]; OOB eth0:10.0.0.4<0>",
    P + "Using non-device net plugin version 0",
    P + "Using network IBext_v8",
    P + "Channel 04/0 : 5[5] -> 12[4] [send] via NET/IBext_v8/0(4)/GDRDMA",
    P + "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read",
    P + "Channel 01/0 : 0[0] -> 1[1] via SHM/direct/direct",
]
V230 = [
    P + "NCCL version 2.30.3+cuda13.0",
    P + "NET/IB: [0] mlx5_0:uverbs0:1/IB provider=Mlx5 speed=400000 context=0xbc pciPath=/sys/devices/pci0000:00 ar=0",
    P + "NET/IB : Made virtual device [0] name=mlx5_0 speed=400000 ndevs=1",
    P + "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.4<0>",
    P + "Initialized NET plugin IB",
    P + "Assigned NET plugin IB to comm",
    P + "Using network IB",
    P + "Channel 00/0 : 4[0] -> 0[0] [receive] via NET/IB/0/GDRDMA(PCI)",
]
MERGED = [P + "NET/IB : Using [0]={[0] mlx5_0:1/IB, [1] mlx5_1:1/IB} [1]={[2] mlx5_2:1/IB, [3] mlx5_3:1/IB} ;",
          P + "Channel 00/0 : 1[0] -> 0[0] [send] via NET/IB/1/GDRDMA"]  # fmt: skip
RCCL = [
    P + "RCCL version : 2.22.3-HEAD:3abe4f6",
    P + "NET/IB : Using [0]mlx5_ib0:1/IB [1]mlx5_ib1:1/IB [2]mlx5_an0:1/RoCE [RO]; OOB eth0:10.0.0.4<0>",
    P + "Using network IB",
    P + "Channel 00/0 : 8[0] -> 0[0] [receive] via NET/IB/0/GDRDMA comm 0x7f nRanks 16",
]
EFA = [
    P + "NET/OFI Selected Provider is efa (found 4 nics)",
    P + "Using network AWS Libfabric",
    P + "Channel 00/0 : 1[1] -> 8[0] [send] via NET/AWS Libfabric/0/GDRDMA",
]
ROCE = [P + "NET/IB : Using [0]rocep1s0f1:1/RoCE [1]roceP2p1s0f1:1/RoCE [RO]; OOB enp1s0f1np1:192.168.100.16<0>",
        P + "Using network IB", P + "Channel 00/0 : 1[0] -> 0[0] [send] via NET/IB/1"]  # fmt: skip
SOCKET = [
    P + "NET/IB : No device found.",
    P + "NET/Socket : Using [0]eth0:10.0.0.4<0>",
    P + "Using network Socket",
    P + "Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0",
]
MNNVL = [
    P + "MNNVL 1 cliqueId 7ffe cliqueSize 8 cliqueRank 2",
    P + "Using network Socket",
    P + "Channel 00/0 : 4[0] -> 3[3] via P2P/MNNVL",
]


@pytest.mark.parametrize(
    ("lines", "network", "devices", "channels", "is_tcp"),
    [
        (OLD, "", {"mlx5_0"}, (1, 0), False),
        (V210, "IB", {"mlx5_1"}, (1, 0), False),
        (V220, "IBext_v8", {"mlx5_ib0"}, (1, 0), False),
        (V230, "IB", {"mlx5_0"}, (1, 0), False),
        (MERGED, "", {"mlx5_2", "mlx5_3"}, (1, 0), False),
        (RCCL, "IB", {"mlx5_ib0"}, (1, 0), False),
        (EFA, "AWS Libfabric", set(), (1, 0), False),
        (ROCE, "IB", {"roceP2p1s0f1"}, (0, 1), False),
        (SOCKET, "Socket", set(), (0, 1), True),
        (MNNVL, "Socket", set(), (0, 0), True),
    ],
    ids=["2.4", "2.10", "2.20 plugin", "2.30", "merged", "RCCL", "EFA", "RoCE", "Socket", "MNNVL"],
)
def test_each_version_says_the_same(lines, network, devices, channels, is_tcp):
    for found in (parse(lines), parse(d for line in lines if (d := digest(line)))):  # whole; shortened on the node
        assert (found.names[-1] if found.names else "") == network
        assert found.devices() == devices
        assert ((found.with_gdr, found.without_gdr), found.is_tcp) == (channels, is_tcp)


def test_what_else_it_says():
    assert parse(MNNVL).only_nvlink
    assert parse(SOCKET).found_none
    assert parse(RCCL).version == "RCCL 2.22.3-HEAD"
    assert parse(OLD).version == "NCCL 2.4.7+cuda10.0"
    assert [(h.name, h.layer, h.has_sharp) for h in parse(V220).hcas] == [
        ("mlx5_ib0", "IB", True), ("mlx5_ib1", "IB", True), ("mlx5_an0", "RoCE", False)]  # fmt: skip
    assert parse(V220).inside == {"P2P/CUMEM": 1, "SHM": 1}
    assert parse([P + "NET/OFI Selected provider is tcp, fabric is 10.0.0.0/24"]).is_tcp


@pytest.mark.parametrize("version", ["2.18", "2.27"])
def test_a_port_whose_requests_fail_is_named_by_the_library(version):
    text = {
        "2.18": "n0:5:6 [5] transport/net_ib.cc:1698 NCCL WARN NET/IB : Got completion from peer 10.0.0.5<40000> with "
        "status=12 opcode=0 len=0 vendor err 129 (Recv) localGid fe80::1 remoteGidsfe80::2 hca mlx5_3",
        "2.27": "[2026-05-05 06:16:47] n0:5:6 [5] transport/net_ib.cc:2470 NCCL WARN NET/IB: Got completion from peer "
        "10.0.0.5<40000> with status=12 opcode=129 len=0 vendor err 129 (Recv) hca mlx5_3",
    }[version]
    assert parse([text]).failures == [("mlx5_3", "10.0.0.5")]
    assert parse([digest(text)]).failures == [("mlx5_3", "10.0.0.5")]


def test_hundreds_of_lines_become_a_handful():
    lines = [P + f"Channel {c:02d}/0 : {r}[0] -> {r + 1}[0] [{way}] via NET/IB/{c % 8}({r % 8})/GDRDMA"
             for c in range(32) for r in range(8) for way in ("send", "receive")]  # fmt: skip
    assert len({digest(line) for line in lines}) == 16


def test_what_is_not_about_the_network_is_dropped():
    assert digest("step 10: loss 3.2") == ""
    assert digest(P + "Channel 00/16 :    0   1   2   3") == ""
    assert digest(P + "comm 0x55 rank 0 nranks 8 cudaDev 0 busId 1b000 - Init COMPLETE") == ""


@pytest.mark.parametrize(
    "line",
    ["NET/IB : Using [{n}]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.4<0>", "[send] via NET/IB/{n}/GDRDMA",
     "NET/IB : Using [{n}]={{mlx5_0:1/IB}}", "NCCL INFO Made virtual device [{n}] name=mlx5_0+mlx5_1",
     "NET/IB.cc:1295 NCCL WARN NET/IB : Got completion with status={n} opcode=0"],
)  # fmt: skip
def test_a_number_of_any_length_in_a_ranks_words_ends_nothing(line):
    """Python's int() reads no more than 4,300 digits."""
    assert parse([line.format(n="9" * 5000)]).hcas == []
