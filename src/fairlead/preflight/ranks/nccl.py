"""What the collective library's own log says about the network it uses. Pure: lines in, one value a rank out.

Formats read (the format strings of NCCL 2.4 to 2.30 and RCCL, as printed in public issues and logs):

    NET/IB : Using [0]mlx5_ib0:1/IB/SHARP [1]mlx5_an0:1/RoCE [RO]; OOB eth0:10.0.0.4<0>       since 2.4
    NET/IB : Using [0]={[0] mlx5_0:1/IB, [1] mlx5_1:1/IB} ...                                 merged ports
    NET/IB : Made virtual device [2] name=mlx5_0+mlx5_1 speed=400000 ndevs=2                   newer; channels say 2
    NET/IB : No device found.
    Using network IB | IBext_v8 | Socket | AWS Libfabric | FasTrak | NCCL RDMA Plugin v6      since 2.6
    Initialized NET plugin IB; Assigned NET plugin IB to comm                                  since 2.27
    NET/OFI Selected Provider is efa (found 4 nics)                                            aws-ofi-nccl
    Ring 00 : 0 -> 4 [send] via NET/IB/0/GDRDMA                                                2.4, 2.5
    Channel 00 : 9[1b000] -> 0[c000] [receive] via NET/IB/0/GDRDMA/Shared                      2.6 to 2.12
    Channel 00/0 : 9[1] -> 0[0] [send] via NET/IB/4(12)/GDRDMA(PCI)                            since 2.13; (12): by PXN
    Channel 00/0 : 0[0] -> 1[1] via P2P/IPC | P2P/CUMEM/read | P2P/direct pointer | P2P/MNNVL | SHM/direct/direct
    CollNet 00/0 : 0 [send] via COLLNET/SHARP/0/GDRDMA
    NET/IB : Got completion with error 12, ...                                                 a warning, 2.4 to 2.8
    NET/IB : Got completion from peer 10.0.0.4<40000> with error 12, opcode 0, ... (Recv)      to 2.17
    NET/IB: Got completion from peer 10.0.0.4<40000> with status=12 ... hca mlx5_3             since 2.18; hca later
    NET/IB: Got completion from peer 10.0.0.4<40000> with status=IBV_WC_RETRY_EXC_ERR(12) ...  newer

RCCL prints the same with `NCCL INFO`, its own version line, and ` comm 0x... nRanks 16` behind a channel.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

_USING = re.compile(r"Using network (.+?)\s*$|Assigned NET plugin (.+?) to comm")
_LIST = re.compile(r"NET/(\S+?)\s*: Using (\[.*)")
_MERGED = re.compile(r"\[(\d{1,9})\]=\{(.*?)\}")
_PLAIN = re.compile(r"\[(\d{1,9})\]\s?([A-Za-z][\w.+-]*):(\d+)/(IB|RoCE)(/SHARP)?")
_INNER = re.compile(r"([A-Za-z][\w.-]*):(\d+)/(IB|RoCE)(/SHARP)?")
_VIA_NET = re.compile(r"via NET/(.+?)/(\d{1,9})(\(proxy\)|\(\d+\))?(/\S*)?(?=\s|$)")
_VIA = re.compile(r"via (P2P/[A-Za-z ]+|SHM|direct shared memory|COLLNET/\w+)")
_PROVIDER = re.compile(r"(?i:selected provider is) ([^\s,]+)")
_VERSION = re.compile(r"([NR]CCL) version\s*:?\s*([\w.+-]+)")
_VIRTUAL = re.compile(r"Made virtual device \[(\d{1,9})\] name=(\S+)")
_COMPLETION = re.compile(r"Got completion (?:from peer (\S+?)<\d+> )?with (?:error |status=)(?:\w+\()?(\d{1,9})\b")
_HCA = re.compile(r"\bhca (\S+)")

NO_ANSWER = 12
"""IBV_WC_RETRY_EXC_ERR: no acknowledgement after all retries. Others follow from an error elsewhere, above all 5, the
requests that were flushed behind the one that failed."""
TCP_NETWORKS = ("Socket", "FastSocket")
TCP_PROVIDERS = ("tcp", "sockets", "udp")


@dataclass(frozen=True, slots=True)
class Hca:
    """A port in the library's list."""

    index: int
    name: str
    port: str
    layer: str
    """IB or RoCE."""
    has_sharp: bool = False


@dataclass
class Network:
    """What one rank's library said."""

    version: str = ""
    names: list[str] = field(default_factory=list)
    """Networks it uses, in the order said."""
    provider: str = ""
    """The libfabric provider, where a plugin names one."""
    hcas: list[Hca] = field(default_factory=list)
    found_none: bool = False
    """It looked for RDMA devices and found none."""
    used: Counter[tuple[str, int]] = field(default_factory=Counter)
    """(network, number in the list) -> channels over it."""
    with_gdr: int = 0
    without_gdr: int = 0
    """Channels over the network with GPUDirect RDMA, and without."""
    inside: Counter[str] = field(default_factory=Counter)
    """P2P/CUMEM, P2P/MNNVL, SHM, ...: channels that need no network."""
    virtual: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """Number in channels -> ports, where the library makes devices of its own of them."""
    failures: list[tuple[str, str]] = field(default_factory=list)
    """(HCA, peer address) of work requests that got no answer; empty texts where the library does not say."""
    num_errors: int = 0
    """Work requests that ended in an error, whatever it was."""
    warnings: list[str] = field(default_factory=list)
    settings: list[str] = field(default_factory=list)

    @property
    def is_silent(self) -> bool:
        """Whether it said nothing about a network."""
        return not self.names and not self.used and not self.hcas

    @property
    def is_tcp(self) -> bool:
        """Whether what it uses is TCP, whatever carries that."""
        named = self.names[-1] if self.names else next((n for n, _ in self.used), "")
        return named in TCP_NETWORKS or self.provider.split(";")[0] in TCP_PROVIDERS

    @property
    def only_nvlink(self) -> bool:
        """Whether channels to other nodes go by multi-node NVLink, and none by the network."""
        return bool(self.inside["P2P/MNNVL"]) and not self.used

    def devices(self) -> set[str]:
        """Names of the ports that channels go over."""
        by_index: dict[int, list[str]] = {}
        for hca in self.hcas:
            by_index.setdefault(hca.index, []).append(hca.name)
        return {name for _, index in self.used for name in self.virtual.get(index, by_index.get(index, ()))}


def parse(lines: Iterable[str]) -> Network:
    """One rank's lines, whole or shortened as onnode/nccllog.py does."""
    out = Network()
    for line in lines:
        if (found := _VERSION.search(line)) and not out.version:
            out.version = f"{found[1]} {found[2]}"
        if found := _USING.search(line):
            name = (found[1] or found[2]).strip()
            if name not in out.names:
                out.names.append(name)
        elif "WARN" in line:
            _warning(out, line)
        elif found := _VIA_NET.search(line):
            out.used[found[1], int(found[2])] += 1
            if "GDRDMA" in (found[4] or ""):
                out.with_gdr += 1
            else:
                out.without_gdr += 1
        elif found := _VIA.search(line):
            out.inside[found[1].strip()] += 1
        elif found := _LIST.search(line):
            if not out.hcas:
                out.hcas = _hcas(found[2])
        elif found := _VIRTUAL.search(line):
            out.virtual[int(found[1])] = tuple(found[2].split("+"))
        elif "No device found" in line and "NET/IB" in line:
            out.found_none = True
        elif "set by environment" in line or "NCCL_IB_HCA set to" in line:
            out.settings.append(line.strip())
        if found := _PROVIDER.search(line):
            out.provider = found[1].lower()
    return out


def _hcas(text: str) -> list[Hca]:
    out = []
    for index, inner in _MERGED.findall(text):
        out += [Hca(int(index), name, port, layer, bool(sharp)) for name, port, layer, sharp in _INNER.findall(inner)]
    for index, name, port, layer, sharp in _PLAIN.findall(_MERGED.sub("", text)):
        # two ports joined to one device are written `mlx5_0+mlx5_1`
        out += [Hca(int(index), part, port, layer, bool(sharp)) for part in name.split("+")]
    return out


def _warning(out: Network, line: str) -> None:
    text = line.partition("WARN ")[2] or line
    out.warnings.append(text[:300])
    if found := _COMPLETION.search(text):
        hca = _HCA.search(text)
        out.num_errors += 1
        if int(found[2]) == NO_ANSWER:
            out.failures.append((hca[1] if hca else "", found[1] or ""))
