# ruff: noqa: E501 - one line a message, as the library prints it
"""NCCL's and RCCL's words as published logs of many versions have them, from each rank's log to the verdict on the job.

Written from NVIDIA/nccl (src/init.cc, src/transport/{net,net_ib,coll_net,p2p}.cc; plugin/net.cc and transport/net_ib/ in
newer ones), Mellanox/nccl-rdma-sharp-plugins (src/ib_plugin.c, src/p2p_plugin.c), aws/aws-ofi-nccl (src/nccl_ofi_net.c),
and logs quoted in NVIDIA/nccl issues 892, 1120, 1357, 1405, 1597, 1664, 1769, 1814, 2186, in nccl-tests issue 228, in
rccl issue 419 and Azure/aks-rdma-infiniband issue 30.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from fairlead.preflight.ranks.facts import RankFacts
from fairlead.preflight.ranks.judge import judge_ranks
from fairlead.preflight.ranks.nccl import parse
from fairlead.preflight.ranks.onnode.nccllog import digest
from fairlead.preflight.ranks.wanted import Wanted
from fairlead.records.verdict import Verdict
from support.rank_facts import of, ranks, replace_end, stop_at

PER = 4
NODES = 3
FAIL, WARN = Verdict.FAIL, Verdict.WARN
IB = Wanted(rdma="ib", link="infiniband", device="gpu", num_hcas=PER)
ROCE = Wanted(rdma="roce", link="ethernet", device="gpu", num_hcas=PER)


def listed(names: str = "mlx5_ib{}:1/IB", num: int = PER) -> str:
    return " ".join(f"[{i}]{names.format(i)}" for i in range(num))


def channels(via: str, *, way: str = "[{busid}]") -> list[str]:
    """Rings between nodes, two channels each way; `{l}` is the local rank."""
    return [
        f"Channel {c:02d}/0 : {{r}}{way} -> {{p}}{way} [{to}] via NET/{via}"
        for c in range(2)
        for to in ("send", "receive")
    ]


COMMON = [
    "cudaDriverVersion 12040",
    "Bootstrap : Using eth0:10.0.0.4<0>",
    "Setting affinity for GPU {l} to ffff,ffffffff",
]
DONE = [
    "Channel 00/08 :    0   1   2   3   4   5   6   7   8   9  10  11",
    "Trees [0] 1/-1/-1->{r}->-1 [1] 1/-1/-1->{r}->-1",
    "P2P Chunksize set to 131072",
    "Connected all rings",
    "16 coll channels, 0 collnet channels, 0 nvls channels, 16 p2p channels, 2 p2p channels per peer",
    "comm 0x55d900e4a6c0 rank {r} nranks 12 cudaDev {l} nvmlDev {l} busId 100000 commId 0x5ae77eb5ea4ec1ee - Init COMPLETE",
]

HEALTHY: dict[str, tuple[list[str], Wanted]] = {
    "2.14, HPC-X": ([
        *COMMON, "NCCL version 2.14.3+cuda11.7",
        "Plugin Path : /opt/hpcx/nccl_rdma_sharp_plugin/lib/libnccl-net.so", "P2P plugin IBext",
        f"NET/IB : Using {listed('mlx5_ib{}:1/IB/SHARP')} [4]mlx5_an0:1/RoCE [RO]; OOB eth0:10.0.0.4<0>", "Using network IBext",
        "Channel 00/0 : {r}[{busid}] -> {n}[{busid}] via P2P/IPC", *channels("IBext/{l}/GDRDMA"), *DONE], IB),
    "2.14, no plugin": ([
        *COMMON, "NET/Plugin : Plugin load (libnccl-net.so) returned 2 : libnccl-net.so: cannot open shared object file: No such file or directory",
        "NET/Plugin : No plugin found, using internal implementation", f"NET/IB : Using {listed()} ; OOB eth0:10.0.0.4<0>",
        "Using network IB", *channels("IB/{l}/GDRDMA"), *DONE], IB),
    "2.18, rails by another GPU": ([
        *COMMON, f"NET/IB : Using {listed('mlx5_ib{}:1/IB')} [4]mlx5_an0:1/RoCE [RO]; OOB eth0:10.0.0.4<0>", "Using network IB",
        "NVLS multicast support is available on dev {l}", "Channel 00/0 : {r}[{l}] -> {n}[{l}] via P2P/IPC/read",
        *channels("IB/{l}({r})/GDRDMA/Shared", way="[{l}]"), "Connected NVLS tree", *DONE], IB),
    "2.21": ([
        *COMMON, "NET/Plugin: No plugin found (libnccl-net.so)", "NET/Plugin: Plugin load returned 2 : libnccl-net.so: cannot open shared object file: No such file or directory : when loading libnccl-net.so",
        "NET/Plugin: Using internal network plugin.", f"NET/IB : Using {listed()} [RO]; OOB eth0:10.0.0.4<0>", "Using non-device net plugin version 0",
        "Using network IB", "DMA-BUF is available on GPU device {l}",
        "ncclCommInitRank comm 0x9c2bb20 rank {r} nranks 12 cudaDev {l} nvmlDev {l} busId 100000 commId 0xe1cd8b0b71dff8d1 - Init START",
        "comm 0x55d900e4a6c0 rank {r} nRanks 12 nNodes 3 localRanks 4 localRank {l} MNNVL 0", "NVLS Head  0:  0  4  8",
        *channels("IB/{l}/GDRDMA", way="[{l}]"), *DONE], IB),
    "2.24": ([
        *COMMON, "NET/Plugin: Could not find: libnccl-net.so. Using internal net plugin.", f"NET/IB : Using {listed()} [RO]; OOB eth0:10.0.0.4<0>",
        "PROFILER/Plugin: Could not find: libnccl-profiler.so.", "Using network IB",
        *(f"NET/IB : GPU Direct RDMA Enabled for HCA {i} 'mlx5_ib{i}'" for i in range(PER)),
        "GPU Direct RDMA Enabled for GPU {l} / HCA {l} (distance 4 <= 5), read 0 mode Default",
        "Bootstrap timings total 0.157689 (create 0.000029, send 0.000098, recv 0.000079, ring 0.000054, delay 0.000000)",
        "Channel 00/0 : {r}[{l}] -> {n}[{l}] via P2P/CUMEM/read", *channels("IB/{l}/GDRDMA", way="[{l}]"), *DONE], IB),
    "2.27": ([
        *COMMON, "NCCL version 2.27.5+cuda12.9",
        *(f"NET/IB: [{i}] mlx5_ib{i}:uverbs{i}:1/IB provider=Mlx5 speed=400000 context=0x5563d0080110 pciPath=/sys/devices/LNXSYSTM:00/pci0101:00/0101:00:00.{i} ar=1" for i in range(PER)),
        *(f"NET/IB : Made virtual device [{i}] name=mlx5_ib{i} speed=400000 ndevs=1" for i in range(PER)),
        f"NET/IB : Using {listed()} [RO]; OOB eth0:10.0.0.4<0>", "Initialized NET plugin IB", "Assigned NET plugin IB to comm", "Using network IB",
        *channels("IB/{l}/GDRDMA(PCI)", way="[{l}]"), *DONE], IB),
    # Mellanox/nccl-rdma-sharp-plugins: the plugin's name holds blanks, and its list says nothing of what channels take
    "2.27, HPC-X": ([
        *COMMON, "NET/Plugin: Loaded net plugin NCCL RDMA Plugin v10 (v10)", "P2P plugin v10 IBext_v10",
        *(f"NET/IB : Made virtual device [{i}] name=mlx5_ib{i} speed=400000 ndevs=1" for i in range(PER)),
        f"NET/IB : Using {listed('mlx5_ib{}:1/IB/SHARP')} [RO]; OOB eth0:10.0.0.4<0>",
        *(f"NET/IB : GPU Direct RDMA (DMABUF) enabled for HCA {i} 'mlx5_ib{i}" for i in range(PER)),
        "Successfully loaded external network plugin /opt/hpcx/nccl_rdma_sharp_plugin/lib/libnccl-net.so",
        "Initialized NET plugin NCCL RDMA Plugin v10", "Assigned NET plugin NCCL RDMA Plugin v10 to comm", "Using network NCCL RDMA Plugin v10",
        *channels("NCCL RDMA Plugin v10/{l}/GDRDMA", way="[{l}]"), *DONE], IB),
    # two ports of one card as one device: its number is behind those of the ports
    "2.27, two ports a card": ([
        *COMMON, f"NET/IB : Using {listed('mlx5_{}:1/RoCE', 2 * PER)} [RO]; OOB eth0:10.0.0.4<0>",
        *(f"NET/IB : Made virtual device [{i}] name=mlx5_{i} speed=200000 ndevs=1" for i in range(2 * PER)),
        *(f"NET/IB : Made virtual device [{2 * PER + i}] name=mlx5_{2 * i}+mlx5_{2 * i + 1} speed=400000 ndevs=2" for i in range(PER)),
        "TOPO/NET : Made vNic 0", "Initialized NET plugin IB", "Using network IB", *channels("IB/{merged}/GDRDMA", way="[{l}]"), *DONE],
        Wanted(rdma="roce", link="ethernet", device="gpu", hcas={f"n{i}": frozenset(f"mlx5_{k}" for k in range(2 * PER)) for i in range(NODES)})),
    "RoCE on names of bnxt_re": ([
        *COMMON, f"NET/IB : Using {listed('bnxt_re{}:1/RoCE')} [RO]; OOB ens9np0:10.0.0.4<0>", "Using network IB",
        *channels("IB/{l}/GDRDMA", way="[{l}]"), *DONE], ROCE),
    "RoCE, links bound together": ([
        *COMMON, f"NET/IB : Using {listed('mlx5_bond_{}:1/RoCE')} [RO]; OOB bond0:10.0.0.4<0>", "Using network IB",
        *channels("IB/{l}/GDRDMA", way="[{l}]"), *DONE], ROCE),
    # MI300X: a communicator stands behind each channel, and the library has another name
    "RCCL 2.22": ([
        "RCCL version : 2.22.3-HEAD:3abe4f6", "HIP version  : 6.4.43482-0f2d60242", "ROCm version : 6.4.0.0-47-5db5012", "Library path : /opt/rocm/lib/librccl.so.1",
        f"NET/IB : Using {listed()} [4]mlx5_an0:1/RoCE [RO]; OOB eth0:10.0.0.4<0>", "Using non-device net plugin version 0", "Using network IB",
        "Channel 00/0 : {r}[{l}] -> {n}[{l}] via P2P/IPC comm 0x55d7f8 nRanks 12",
        *(f"{line} comm 0x55d7f8 nRanks 12" for line in channels("IB/{l}/GDRDMA", way="[{l}]")), *DONE], IB),
    "2.21, SHARP": ([
        *COMMON, f"NET/IB : Using {listed('mlx5_ib{}:1/IB/SHARP')} [RO]; OOB eth0:10.0.0.4<0>", "Using network IBext_v8",
        *channels("IBext_v8/{l}/GDRDMA", way="[{l}]"), "CollNet 00/0 : {r} [send] via COLLNET/SHARP/{l}/GDRDMA", "CollNet 00/0 : {r} [receive] via COLLNET/SHARP/{l}/GDRDMA", *DONE], IB),
    # a rack of GB300: channels between its nodes are NVLink
    "MNNVL, InfiniBand behind it": ([
        *COMMON, f"NET/IB : Using {listed()} [RO]; OOB eth0:10.0.0.4<0>", "Using network IB",
        "MNNVL busId 0x801000 fabric UUID 3143b15bc2cd192b.28cc9b5473fb5b93 cliqueId 0x7ffe state 3 healthMask 0xaa",
        "MNNVL 1 cliqueId 7ffe cliqueSize 12 cliqueRank {r}", "comm 0xaaab rank {r} nRanks 12 nNodes 1 localRanks 12 localRank {r} MNNVL 1",
        "NVLS multicast support is available on dev {l} (NVLS_NCHANNELS 24)", "Channel 00/0 : {r}[{l}] -> {p}[{l}] via P2P/MNNVL", *DONE], IB),
}  # fmt: skip


def say(rank: int, lines: list[str]) -> list[str]:
    """What one rank's log holds, with the library's prefix."""
    local, busid = rank % PER, f"{(rank % PER + 1):x}00000"
    values = {
        "r": rank,
        "l": local,
        "p": (rank + PER) % (PER * NODES),
        "n": rank ^ 1,
        "busid": busid,
        "merged": 2 * PER + local,
    }
    return [f"n{rank // PER}:{5000 + rank}:{5100 + rank} [{local}] NCCL INFO {line.format(**values)}" for line in lines]


Lines = Callable[[int], list[str]]


def job(lines: Lines) -> RankFacts:
    """A job whose ranks' logs were shortened on their nodes, as the rank does it."""
    facts = ranks(NODES, PER)
    for rank in range(NODES * PER):
        of(facts, rank, "nccl")["lines"] = dict(Counter(d for line in say(rank, lines(rank)) if (d := digest(line))))
    return facts


def told(lines: Lines, wanted: Wanted) -> list[tuple[Verdict, tuple[str, ...]]]:
    found = [f for f in judge_ranks(job(lines), {}, wanted) if f.code == "preflight/transport"]
    assert found
    return [(f.verdict, f.subject.nodes) for f in found if f.verdict is not Verdict.PASS]


@pytest.mark.parametrize("name", HEALTHY)
def test_a_published_log_of_a_good_job_is_well(name: str) -> None:
    lines, wanted = HEALTHY[name]
    assert told(lambda _: lines, wanted) == []


GOOD = HEALTHY["2.24"][0]
WITHOUT_GDR = [line.replace("/GDRDMA", "").replace("RDMA Enabled", "RDMA Disabled") for line in GOOD]
NO_VERBS = [*COMMON, "Failed to open libibverbs.so[.1]", "NET/IB : No device found.", "NET/Socket : Using [0]eth0:10.0.0.4<0>", "Using network Socket", *channels("Socket/0", way="[{l}]")]  # fmt: skip
TOLD_SOCKET = [*COMMON, "NCCL_NET set by environment to Socket.", "NET/Socket : Using [0]eth0:10.0.0.4<0> [1]ib0:172.16.1.10<0>", "Initialized NET plugin Socket", "Using network Socket", *channels("Socket/1", way="[{l}]")]  # fmt: skip
MNNVL_ALONE = [
    *NO_VERBS[:7],
    "MNNVL 1 cliqueId 7ffe cliqueSize 12 cliqueRank {r}",
    "Channel 00/0 : {r}[{l}] -> {p}[{l}] via P2P/MNNVL",
]
THREE = [line.replace(listed(), " ".join(f"[{i}]mlx5_ib{k}:1/IB" for i, k in enumerate((0, 1, 3)))) for line in GOOD if "via NET" not in line]  # fmt: skip
WRONG_PORT = [*(line for line in HEALTHY["2.14, HPC-X"][0] if "via NET" not in line), *channels("IBext/4")]

FAULTS: dict[str, tuple[Lines, Wanted, list[tuple[Verdict, tuple[str, ...]]]]] = {
    "one node without GPUDirect": (lambda r: WITHOUT_GDR if r // PER == 1 else GOOD, IB, [(FAIL, ("n1",))]),
    "no GPUDirect anywhere": (lambda _: WITHOUT_GDR, IB, [(WARN, ())]),
    "one node without verbs": (lambda r: NO_VERBS if r // PER == 2 else GOOD, IB, [(FAIL, ("n2",))]),
    "told to use sockets": (lambda _: TOLD_SOCKET, IB, [(FAIL, ())]),
    "MNNVL and nothing behind it": (lambda _: MNNVL_ALONE, IB, [(WARN, ("n0", "n1", "n2"))]),
    "one node leaves out a port": (
        lambda r: [*THREE, *channels(f"IB/{min(r % PER, 2)}/GDRDMA", way="[{l}]")] if r // PER == 0 else GOOD,
        IB,
        [(FAIL, ("n0",))],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_published_log_of_a_bad_job_names_the_node(name: str) -> None:
    lines, wanted, label = FAULTS[name]
    assert [t for t in told(lines, wanted) if t[0] is not Verdict.SKIP][:1] == label[:1]
    assert {n for _, nodes in told(lines, wanted) for n in nodes} == {n for _, nodes in label for n in nodes}


def test_a_channel_over_the_front_ends_port_names_that_port() -> None:
    found = judge_ranks(job(lambda r: WRONG_PORT if r == 5 else HEALTHY["2.14, HPC-X"][0]), {}, IB)
    assert [str(f.subject) for f in found if f.code == "preflight/transport" and f.verdict is FAIL] == [
        "n1 mlx5_an0 (RoCE)"
    ]


# ---- other networks than InfiniBand --------------------------------------------------------------------------------

OTHERS: dict[str, tuple[list[str], str, tuple[int, int], bool]] = {
    "EFA, aws-ofi-nccl 1.13": (["NET/OFI Initializing aws-ofi-nccl 1.13.0-aws", "NET/OFI Using Libfabric version 1.22", "NET/OFI Selected Provider is efa (found 16 nics)", "NET/OFI Using transport protocol RDMA", "Using network Libfabric", *channels("Libfabric/{l}/GDRDMA", way="[{l}]")], "Libfabric", (4, 0), False),
    "EFA, aws-ofi-nccl 1.15": (["NET/OFI Initializing aws-ofi-nccl 1.15.0", "NET/OFI Selected provider is efa, fabric is efa-direct (found 16 nics)", "Using network Libfabric", *channels("Libfabric/{l}/GDRDMA", way="[{l}]")], "Libfabric", (4, 0), False),
    "EFA of 2019": (["NET/OFI Selected Provider is efa", "Ring 00 : 7 -> 8 [send] via NET/AWS Libfabric/0"], "", (0, 1), False),
    "libfabric over tcp": (["NET/OFI Selected provider is tcp, fabric is 10.0.0.0/24 (found 2 nics)", "Using network Libfabric", *channels("Libfabric/0", way="[{l}]")], "Libfabric", (0, 4), True),
    "gIB": (["NET/gIB : Initializing gIB v1.0.5", "Using network gIB", *channels("gIB/{l}/GDRDMA", way="[{l}]")], "gIB", (4, 0), False),
    "sockets on IPoIB are sockets": (["NCCL_IB_DISABLE set by environment to 1.", "NET/Socket : Using [0]ib0:172.16.1.10<0>", "Using network Socket", *channels("Socket/0", way="[{l}]")], "Socket", (0, 4), True),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_other_networks(name: str) -> None:
    lines, network, num, is_tcp = OTHERS[name]
    found = parse(d for line in say(1, lines) if (d := digest(line)))
    assert (found.names[-1] if found.names else "", found.is_tcp) == (network, is_tcp)
    if name != "EFA of 2019":
        whole = parse(say(1, lines))
        assert (whole.with_gdr, whole.without_gdr) == num


def test_two_ports_of_a_card_are_both_in_use() -> None:
    lines, _ = HEALTHY["2.27, two ports a card"]
    assert parse(say(1, lines)).devices() == {"mlx5_2", "mlx5_3"}
    assert parse(d for line in say(1, lines) if (d := digest(line))).devices() == {"mlx5_2", "mlx5_3"}


# ---- requests without an answer (IBV_WC_RETRY_EXC_ERR, 12), generation by generation -----------------------------------

GONE = {
    "2.8": ("transport/net_ib.cc:839 NCCL WARN NET/IB : Got completion with error 12, opcode 0, len 0, vendor err 129", [("", "")]),
    "2.14": ("transport/net_ib.cc:1296 NCCL WARN NET/IB : Got completion from peer 10.2.0.5<33092> with error 12, opcode 0, len 0, vendor err 129 (Recv)", [("", "10.2.0.5")]),
    "2.18": ("transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.2.0.5<44206> with status=12 opcode=1 len=0 vendor err 129 (Send) localGid ::ffff:10.9.0.4 remoteGids::ffff:10.9.0.5", [("", "10.2.0.5")]),
    "the plugin": ("ib_plugin.c:1615 NCCL WARN NET/IB : Got completion from peer 10.2.0.5<54862> with status=12 opcode=32616 len=0 vendor err 129 (Recv) localGid fd00:1148:9000:5000:4:200:3:ff22 remoteGidsfd00:1148:9000:5000:4:200:3:ff1f", [("", "10.2.0.5")]),
    "2.23": ("transport/net_ib.cc:2143 NCCL WARN NET/IB: Got completion from peer 10.2.0.5<44206> with status=12 opcode=0 len=0 vendor err 129 (Send) localGid ::ffff:10.9.0.4 remoteGids::ffff:10.9.0.5 hca mlx5_3", [("mlx5_3", "10.2.0.5")]),
    "2.28": ("transport/net_ib.cc:2470 NCCL WARN NET/IB: Got completion from peer 10.2.0.5<44206> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) reqSize=0 vendor_err=129 req_type=Recv localGid ::ffff:10.9.0.4 remoteGids::ffff:10.9.0.5 hca mlx5_3", [("mlx5_3", "10.2.0.5")]),
    "2.29": ("transport/net_ib/p2p.cc:688 NCCL WARN NET/IB: Got completion from peer fd00::5<44206> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_RDMA_WRITE(1) vendor_err=129  hca mlx5_3", [("mlx5_3", "fd00::5")]),
    # the queue was emptied after another request had failed: no evidence of its own
    "flushed, 2.18": ("transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.2.0.5<44206> with status=5 opcode=1 len=0 vendor err 249 (Send)", []),
    "flushed, 2.28": ("transport/net_ib.cc:2470 NCCL WARN NET/IB: Got completion from peer 10.2.0.5<44206> with status=IBV_WC_WR_FLUSH_ERR(5) opcode=IBV_WC_SEND(0) reqSize=0 vendor_err=249 req_type=Recv hca mlx5_3", []),
}  # fmt: skip


@pytest.mark.parametrize("stamp", ["", "[2026-05-05 06:16:47] "])
@pytest.mark.parametrize("name", GONE)
def test_a_request_without_an_answer_in_every_generation(name: str, stamp: str) -> None:
    line, label = GONE[name]
    text = f"{stamp}n0:5:6 [5] {line}"
    assert parse([text]).failures == label
    assert parse([d for d in [digest(text)] if d]).failures == label


def aborted(*complaints: tuple[int, str]) -> list[tuple[str, str]]:
    """What is said of a job whose ranks torch aborted after the library's words, as (rank, word)."""
    facts = ranks(4, 2, broken="a rank ended", took_s=9.0)
    for rank in range(8):
        stop_at(facts, rank, "reduce", state="stopped", rc=75)
        facts.beats[rank] = {"rank": rank, "node": facts.nodes[rank // 2], "say": "beat", "at_s": 8.9}
    for rank, text in complaints:
        facts.words.setdefault(rank, []).append(text)
        replace_end(facts, rank, rc=-6, error="killed by SIGABRT", at_s=8.0)
    addresses = {f"n{i}": f"10.2.0.{i}" for i in range(4)}
    return [(f.code, str(f.subject)) for f in judge_ranks(facts, addresses, Wanted(rdma="none")) if f.verdict is FAIL]


def test_requests_flushed_behind_the_one_that_failed_make_no_second_peer() -> None:
    """Else a port would be said to fail with several peers, where one way is dead."""
    warn = "n{}:5:6 [1] transport/net_ib.cc:2470 NCCL WARN NET/IB: Got completion from peer 10.2.0.{}<44206> with status={} opcode={} reqSize=0 vendor_err=129 req_type=Recv hca mlx5_1"  # fmt: skip
    gone, flushed = ("IBV_WC_RETRY_EXC_ERR(12)", "IBV_WC_SEND(0)"), ("IBV_WC_WR_FLUSH_ERR(5)", "IBV_WC_SEND(0)")
    said = [(3, warn.format(1, 2, *gone)), (3, warn.format(1, 0, *flushed)), (3, warn.format(1, 3, *flushed))]
    assert aborted(*said, (5, warn.format(2, 1, *gone))) == [("preflight/dead-rail", "n1 <-> n2 mlx5_1")]


def test_ranks_that_saw_only_flushed_requests_name_no_port() -> None:
    warn = "n1:5:6 [1] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.2.0.2<44206> with status=5 opcode=1 len=0 vendor err 249 (Send)"  # fmt: skip
    assert [code for code, _ in aborted((3, warn))] == ["preflight/collective-failed"]
