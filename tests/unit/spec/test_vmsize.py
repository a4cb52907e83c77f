"""The VM-size tables are complete, consistent with each other and with the published tables they come from."""

from __future__ import annotations

import re

import pytest

from fairlead.spec.contract import contract_of
from fairlead.spec.loader import preset, read
from fairlead.spec.vmsize import EXPECTED, FACTS, VmSize, size, sizes, storage

REAL = [s for s in sizes().values() if s.family != "none"]
NCV6 = """
NC36ds   36  132  22500 1/4  24  256  1600
NC72ds   72  264  45000 1/2  48  512  3200
NC144ds 144  516  90000 1    96 1024  6400
NC288ds 288 1032 180000 2   192 2048 12800
NC324ds 324 1284 180000 2   192 2048 12800
NC24lds  24   72  22500 1/4  24  256  1600
NC36lds  36   72  22500 1/4  24  256  1600
NC72lds  72  132  45000 1/2  48  512  3200
NC144lds 144 264  90000 1    96 1024  6400
NC288lds 288 516 180000 2   192 2048 12800
NC324lds 324 648 180000 2   192 2048 12800
"""
"""The tables of the announcement: name, vCPUs, memory GB, network Mb/s, GPUs, GPU memory GB, temp disk, NVMe disk."""


@pytest.mark.parametrize("row", NCV6.split("\n")[1:-1])
@pytest.mark.parametrize("spelling", ["Standard_{}_xl_RTXPro6000_v6", "standard_{}_XL_rtxpro6000bse_v6"])
def test_ncv6_as_announced(row: str, spelling: str) -> None:
    name, vcpus, memory, mbps, gpus, gpu_memory, temp, nvme = row.split()
    found = size(spelling.format(name))
    assert found is not None
    assert (found.vcpus, found.memory_gib, found.temp_disk_gib, found.nvme_gib) == (
        int(vcpus),
        float(memory),
        float(temp),
        float(nvme),
    )
    assert found.ethernet_gbps == int(mbps) / 1000
    share = {"1/4": 0.25, "1/2": 0.5, "1": 1.0}[found.gpu_share]
    assert found.gpus is not None
    assert found.gpus * share == {"1/4": 0.25, "1/2": 0.5}.get(gpus) or found.gpus == int(gpus)
    assert found.gpu_memory_gb is not None
    assert found.gpus * found.gpu_memory_gb == int(gpu_memory)
    assert found.rdma is False


@pytest.mark.parametrize(
    ("name", "gpus", "ports", "rates"),
    [
        ("Standard_ND96isr_H100_v5", 8, 8, (400,)),
        ("Standard_ND96isr_H200_v5", 8, 8, (400,)),
        ("Standard_ND96asr_v4", 8, 8, (200,)),
        ("Standard_ND96amsr_A100_v4", 8, 8, (200,)),
        ("Standard_ND96isr_MI300X_v5", 8, 8, (400,)),
        ("Standard_ND128isr_NDR_GB200_v6", 4, 4, (400,)),
        ("Standard_ND128isr_GB300_v6", 4, 4, (400, 800)),
        ("Standard_HB176rs_v4", 0, 1, (400,)),
        ("Standard_HB368rs_v5", 0, 4, (200,)),
        ("Standard_HX176rs", 0, 1, (400,)),
        ("Standard_NC24ads_A100_v4", 1, 0, ()),
        ("Standard_ND96is_H200_v5", 8, 0, ()),
    ],
)
def test_what_checks_lean_on(name: str, gpus: int, ports: int, rates: tuple[float, ...]) -> None:
    found = sizes()[name]
    assert (found.gpus, found.hca_ports, found.hca_rates_gbps) == (gpus, ports, rates)
    assert found.rdma is (ports > 0)


@pytest.mark.parametrize("found", REAL, ids=lambda s: s.name)
def test_each_size_is_consistent(found: VmSize) -> None:
    assert re.fullmatch(r"Standard_(ND|NC|HB|HX)[A-Za-z0-9_-]+", found.name)
    for spelling in (found.name, *found.aliases):
        assert size(spelling.upper()) is found
    assert found.vcpus
    assert found.cpu_arch
    assert found.gpus is not None
    assert found.rdma is not None
    assert found.hca_ports is not None
    assert bool(found.gpus) == bool(found.gpu_vendor) == bool(found.gpu_model) == bool(found.gpu_memory_gb)
    assert found.rdma == (found.hca_ports > 0) == bool(found.hca_rates_gbps) == bool(found.link_layer)
    assert found.gpu_share == "1" or found.gpus == 1
    for spread, total in ((found.gpus_per_numa, found.gpus), (found.hcas_per_numa, found.hca_ports)):
        assert not spread or (sum(spread) == total and len(spread) == found.numa_nodes)


@pytest.mark.parametrize("found", sizes().values(), ids=lambda s: s.name)
def test_every_number_has_a_source(found: VmSize) -> None:
    for fact in FACTS:
        said = getattr(found, fact) not in (None, "", (), "1")
        assert (found.source(fact) is not None) == said
    for quantity, limits in found.expected.items():
        assert quantity in EXPECTED
        assert found.source(quantity) is not None
        numbers = [limits.fail_below, limits.warn_below, limits.typical]
        given = [n for n in numbers if n is not None]
        assert given == sorted(given)
        assert given or limits.fail_above is not None
        assert found.reached[quantity][0] == limits
    for quantity, rows in found.reached.items():
        assert len({(row.nodes, row.message_bytes) for row in rows}) == len(rows), quantity
        assert all(row.source for row in rows)
    for source in found.sources.values():
        assert source.name
        assert source.where
        assert re.fullmatch(r"20\d\d(-\d\d(-\d\d)?)?", source.date)


def test_a_row_like_another_keeps_the_sources_apart() -> None:
    whole, less = sizes()["Standard_HB176rs_v4"], sizes()["Standard_HB176-24rs_v4"]
    assert (less.vcpus, less.memory_gib, set(less.expected)) == (24, whole.memory_gib, set(whole.expected))
    assert {row.of for rows in less.reached.values() for row in rows} == {whole.name}
    assert less.source("numa_nodes") == whole.source("numa_nodes")
    h200 = sizes()["Standard_ND96isr_H200_v5"]
    vcpus, numa = h200.source("vcpus"), h200.source("numa_nodes")
    assert vcpus is not None
    assert numa is not None
    assert "H200" in vcpus.name
    assert "topology" in numa.name


def test_no_two_sizes_share_a_spelling() -> None:
    spellings = [n.casefold() for s in sizes().values() for n in (s.name, *s.aliases)]
    assert len(spellings) == len(set(spellings))


def test_unknown_size() -> None:
    assert size("Standard_D8s_v6") is None
    assert size("") is None


def test_storage_tiers() -> None:
    tiers = {t.name: t for t in storage()}
    for rate, least in ((40, 48), (125, 16), (250, 8), (500, 4)):
        tier = tiers[f"AMLFS-Durable-Premium-{rate}"]
        assert (tier.mbs_per_tib, tier.min_tib, tier.step_tib) == (rate, least, least)
        assert tier.source.date == "2023-06-28"
    assert tiers["Premium SSD v2"].max_mbs == 2000
    assert {t.kind for t in storage()} == {"shared", "disk", "local"}


def test_contract_is_the_size_where_the_file_is_silent() -> None:
    spec = preset("nd-h100", environ={}).spec
    contract, table = contract_of(spec, spec.pools[0]), sizes()["Standard_ND96isr_H100_v5"]
    assert all(getattr(contract, f) == getattr(table, f) for f in (*FACTS, "name", "expected", "sources"))
    assert (contract.memlock_gib, contract.hcas) == (None, ())


def test_contract_takes_expect_and_pool_over_the_size(tmp_path: object) -> None:
    from pathlib import Path

    assert isinstance(tmp_path, Path)
    path = tmp_path / "c.toml"
    path.write_text("""
schema = 1
[[pool]]
name = "gb"
size = "Standard_ND128isr_GB300_v6"
nodes = "gb[1-2]"
[[pool]]
name = "own"
size = "other"
nodes = "o1"
gpus = 3
[access]
via = "ssh"
[[expect]]
fact = "hca_rates_gbps"
value = [800]
why = "all links are 800 here"
pool = "gb"
[[expect]]
fact = "memlock_gib"
value = 64
why = "limits.conf"
[[expect]]
fact = "job_allreduce_busbw_gbs"
value = 210
why = "measured in May"
[[expect]]
fact = "hca_pair_latency_us"
value = 4.5
why = "measured in May"
""")
    spec = read(path, environ={}).spec
    gb, own = (contract_of(spec, p) for p in spec.pools)
    assert (gb.hca_rates_gbps, own.hca_rates_gbps) == ((800.0,), ())
    assert (gb.memlock_gib, own.memlock_gib) == (64.0, 64.0)
    assert str(gb.source("hca_rates_gbps")) == "the cluster file, all links are 800 here"
    assert str(own.source("gpus")) == "the cluster file, [[pool]] own"
    assert own.gpus == 3
    assert gb.source("gpus") == sizes()["Standard_ND128isr_GB300_v6"].source("gpus")
    assert gb.expected["job_allreduce_busbw_gbs"].fail_below == 210
    assert gb.expected["hca_pair_latency_us"].fail_above == 4.5
    assert gb.expected["gpu_gemm_tflops"].fail_below == 1720
