"""What each VM size has, and what its parts are known to deliver: data with a source and a date for every number.

The data is in sizes/*.toml and storage.toml beside this file. A fact that no source names is None, and nothing may be
concluded from it. Must not know: the cluster file, or any machine.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

_DATA = Path(__file__).parent

Confidence = Literal["documented", "practice", "announced", "low"]
"""documented: the maker's reference pages; practice: limits or files in use on such machines; announced: told before it
was there; low: one voice, or sources that disagree."""


class Source(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a number comes from."""

    name: str
    where: str
    date: str
    """The page's own date, as exactly as it gives it: 2026, 2026-05 or 2026-05-07."""
    confidence: Confidence

    def __str__(self) -> str:
        return f"{self.name}, {self.date or self.where}"


class Expected(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A measured quantity a node or a job should reach. The unit is the end of its name, see EXPECTED."""

    typical: float | None = None
    warn_below: float | None = None
    fail_below: float | None = None
    fail_above: float | None = None
    nodes: tuple[int, int] | None = None
    """The fewest and the most nodes it holds for; left out, any number."""
    message_bytes: int = 0
    """The smallest message it holds for: a rate grows with the message, and a limit for a large one fails a small."""
    source: str
    """Who says so, in one line."""
    of: str = ""
    """The VM size it was found on, where it is taken over from a like one."""
    note: str = ""
    """How it was measured."""


EXPECTED: Mapping[str, tuple[str, str]] = {
    "node_allreduce_busbw_gbs": ("GB/s", "bus bandwidth of an all-reduce over the GPUs of one node"),
    "job_allreduce_busbw_gbs": ("GB/s", "bus bandwidth of an all-reduce over several nodes"),
    "job_allreduce_ipoib_busbw_gbs": (
        "GB/s",
        "bus bandwidth of an all-reduce over several nodes, by IP over InfiniBand",
    ),
    "rack_allreduce_busbw_gbs": ("GB/s", "bus bandwidth of an all-reduce within one NVLink rack"),
    "hca_allreduce_busbw_gbs": ("GB/s", "bus bandwidth of an all-reduce within one node, forced over the HCAs"),
    "hca_gdr_gbps": ("Gb/s", "RDMA write bandwidth of one HCA on GPU memory"),
    "hca_loopback_gbps": ("Gb/s", "RDMA write bandwidth of one HCA on host memory"),
    "hca_pair_gbps": ("Gb/s", "RDMA write bandwidth between two nodes, per HCA"),
    "hca_pair_latency_us": ("us", "RDMA read latency between two nodes"),
    "gpu_h2d_gbs": ("GB/s", "copy from host to one GPU"),
    "gpu_d2h_gbs": ("GB/s", "copy from one GPU to the host"),
    "gpu_memory_gbs": ("GB/s", "memory bandwidth of one GPU"),
    "gpu_p2p_gbs": ("GB/s", "copy between two GPUs of one node"),
    "gpu_gemm_tflops": ("TFLOPS", "16-bit matrix multiplication on one GPU"),
    "cpu_stream_gbs": ("GB/s", "memory bandwidth of the node (STREAM triad)"),
}
"""Every name of an expected quantity: its unit, and what it is."""


class VmSize(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One VM size. None: no source says."""

    name: str
    family: str = ""
    aliases: tuple[str, ...] = ()
    """Other spellings in use."""
    note: str = ""
    vcpus: int | None = None
    """Virtual CPUs."""
    cpu_arch: Literal["x86_64", "aarch64"] | None = None
    """Instruction set."""
    memory_gib: float | None = None
    """Memory in GiB, as sold; the guest sees a few per cent less."""
    numa_nodes: int | None = None
    """NUMA nodes the guest sees."""
    gpus: int | None = None
    """GPU devices the guest sees."""
    gpu_share: str = "1"
    """How much of a physical GPU one device is: "1/4", "1/2" or "1"."""
    gpu_vendor: Literal["nvidia", "amd"] | None = None
    """Who makes the GPU."""
    gpu_model: str = ""
    """What the product name of the GPU contains."""
    gpu_memory_gb: float | None = None
    """Memory of one GPU device in GB, as sold."""
    nvlinks_per_gpu: int | None = None
    """NVLinks that must be up on each GPU."""
    fabric_manager: Literal["guest", "external"] | None = None
    """Who runs NVIDIA's fabric manager: this VM, or the rack."""
    gpus_per_numa: tuple[int, ...] = ()
    """GPUs on each NUMA node, in order; empty where nobody says."""
    hcas_per_numa: tuple[int, ...] = ()
    """RDMA ports on each NUMA node, in order; empty where nobody says."""
    rdma: bool | None = None
    """Whether the size has RDMA at all."""
    hca_ports: int | None = None
    """RDMA ports, without the accelerated Ethernet port."""
    hca_rates_gbps: tuple[float, ...] = ()
    """Port rates that are right, in Gb/s. Several where sources disagree; one job must still see one rate."""
    link_layer: Literal["infiniband", "ethernet"] | None = None
    """Link layer of the RDMA ports."""
    ipoib: Literal["up", "down", "any"] | None = None
    """IP over InfiniBand: up, not used, or either."""
    port_netdevs: bool | None = None
    """Whether each RDMA port has a network device of its own, by which device plugins tell its link layer."""
    accelerated_networking: bool | None = None
    """Whether the Ethernet NIC gets a virtual function."""
    ethernet_gbps: float | None = None
    """Most the Ethernet NICs carry together, in Gb/s."""
    nvme_disks: int | None = None
    """Local NVMe disks."""
    nvme_gib: float | None = None
    """All local NVMe disks together, in GiB."""
    temp_disk_gib: float | None = None
    """The temporary disk, in GiB."""
    expected: Mapping[str, Expected] = {}
    """Quantities to reach, by the names of EXPECTED: of several rows, the first."""
    reached: Mapping[str, tuple[Expected, ...]] = {}
    """All rows of each quantity: by number of nodes, and by message size; `spec.limits.limit_for` picks one."""
    sources: Mapping[str, Source] = {}
    """Fact or quantity -> where its value comes from."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def source(self, fact: str) -> Source | None:
        """Where a fact's value comes from."""
        return self.sources.get(fact)


class Tier(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of storage. MB/s are 10^6 bytes a second."""

    name: str
    kind: Literal["shared", "disk", "local"]
    """shared: a file system for all nodes; disk: attached to one node; local: inside it."""
    source: Source
    mbs_per_tib: float | None = None
    """Throughput that comes with each TiB."""
    max_mbs: float | None = None
    """Most one unit delivers, reading."""
    max_iops: float | None = None
    min_tib: float | None = None
    max_tib: float | None = None
    step_tib: float | None = None
    """Capacities are multiples of this."""
    note: str = ""


FACTS = tuple(
    f
    for f in VmSize.__struct_fields__
    if f not in ("name", "family", "aliases", "note", "expected", "reached", "sources")
)
"""The names of all facts of a VM size."""


@functools.cache
def sizes() -> dict[str, VmSize]:
    """Every VM size by its own name, family by family."""
    found: dict[str, VmSize] = {}
    for file in sorted(_DATA.joinpath("sizes").glob("*.toml")):
        for size in _family(tomllib.loads(file.read_text("utf-8"))):
            found[size.name] = size
    return found


def size(name: str) -> VmSize | None:
    """The VM size of a name, in any case and either spelling; None if no table has it."""
    return _by_spelling().get(name.strip().casefold())


@functools.cache
def storage() -> tuple[Tier, ...]:
    """Every kind of storage."""
    data = tomllib.loads(_DATA.joinpath("storage.toml").read_text("utf-8"))
    return tuple(
        msgspec.convert({**row, "source": data["source"][row["source"]]}, Tier, strict=False) for row in data["tier"]
    )


@functools.cache
def _by_spelling() -> dict[str, VmSize]:
    return {spelling.casefold(): s for s in sizes().values() for spelling in (s.name, *s.aliases)}


def _family(data: dict[str, Any]) -> list[VmSize]:
    """The sizes of one file. A row may be `like` an earlier one: it takes over what it does not say itself.

    The row's `source` vouches for all of it, except what `from` gives another source; `like` takes over `from` as well,
    and of `expected` each quantity that the row does not name, marked with the size it was found on.
    """
    known = {key: msgspec.convert(s, Source) for key, s in data["source"].items()}
    facts: dict[str, dict[str, Any]] = {}
    origins: dict[str, dict[str, str]] = {}
    reached: dict[str, dict[str, tuple[Expected, ...]]] = {}
    vouched: dict[str, dict[str, Source]] = {}
    out: list[VmSize] = []
    for row in data["size"]:
        name, like, said = row["name"], row.pop("like", ""), row.pop("from", {})
        main = row.pop("source")
        inherited = {k: v for k, v in origins.get(like, {}).items() if k not in row}
        origins[name] = inherited | said
        own = {quantity: _rows(rows) for quantity, rows in row.pop("expected", {}).items()}
        facts[name] = {k: v for k, v in facts.get(like, {}).items() if k not in ("aliases", "note")} | row
        taken = {q: tuple(_of(like, r) for r in rows) for q, rows in reached.get(like, {}).items()}
        reached[name] = taken | {q: tuple(_convert(r, known) for r in rows) for q, rows in own.items()}
        vouched[name] = vouched.get(like, {}) | {q: known[rows[0]["source"]] for q, rows in own.items()}
        sources = {f: known[origins[name].get(f, main)] for f in FACTS if f in facts[name]} | vouched[name]
        filled = {**facts[name], "family": data["family"], "sources": sources, "reached": reached[name]}
        filled["expected"] = {quantity: rows[0] for quantity, rows in reached[name].items()}
        out.append(msgspec.convert(filled, VmSize))
    return out


def _rows(said: dict[str, Any] | list[dict[str, Any]]) -> list[dict[str, Any]]:
    return said if isinstance(said, list) else [said]


def _convert(row: dict[str, Any], known: Mapping[str, Source]) -> Expected:
    return msgspec.convert({**row, "source": str(known[row["source"]])}, Expected)


def _of(like: str, row: Expected) -> Expected:
    return msgspec.structs.replace(row, of=row.of or like)
