"""`init --from-here`: a captured tree of a machine becomes a cluster file that passes check."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.spec.here import AZURE_ASSET_TAG, Here, _run, look, tree_of
from fairlead.spec.loader import Loaded, read
from fairlead.spec.model import Pool
from fairlead.spec.write import write

SINFO = """\
hpc*|h200-[000-003]|gpu:h200:8(S:0-1)
hpc*|h200-007|gpu:h200:8
cpu|c[1-2]|(null)
odd|bad[|(null)
"""


def machine(root: Path, *, gpus: int = 0, hcas: int = 0, azure: bool = False, vendor: str = "0x10de") -> Path:
    """A sysfs tree with GPUs, InfiniBand HCAs, one accelerated Ethernet port and a disk."""
    devices = [(vendor, "0x030200")] * gpus + [("0x1414", "0x010802"), ("0x10de", "0x068000")]
    for number, (maker, kind) in enumerate(devices):
        folder = root / f"sys/bus/pci/devices/0000:00:{number:02x}.0"
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(maker + "\n")
        (folder / "class").write_text(kind + "\n")
    for name, layer in [(f"mlx5_ib{n}", "InfiniBand") for n in range(hcas)] + [("mlx5_an0", "Ethernet")]:
        folder = root / f"sys/class/infiniband/{name}/ports/1"
        folder.mkdir(parents=True)
        (folder / "link_layer").write_text(layer + "\n")
    (root / "sys/class/dmi/id").mkdir(parents=True)
    (root / "sys/class/dmi/id/chassis_asset_tag").write_text((AZURE_ASSET_TAG if azure else "0") + "\n")
    return root


def seen(root: Path, *, sinfo: str = "", size: str = "") -> Here:
    return look(root, hostname="Node_1", run=lambda _: sinfo, fetch=lambda _: size)


def loaded(here: Here, tmp_path: Path) -> Loaded:
    path = tmp_path / "c.toml"
    path.write_text(write(tree_of(here), title="\n".join(here.notes)))
    return read(path, environ={})


def only_pool(here: Here, tmp_path: Path) -> Pool:
    found = loaded(here, tmp_path)
    assert found.warnings == ()
    (pool,) = found.spec.pools
    return pool


def test_an_ordinary_machine(tmp_path: Path) -> None:
    here = seen(machine(tmp_path / "m"))
    assert (here.num_gpus, here.infiniband_ports, here.vm_size, here.partitions) == (0, 0, "", ())
    spec = loaded(here, tmp_path).spec
    assert (spec.access.via, spec.cluster.name, str(spec.nodes), spec.fabric.link) == (
        "local",
        "node-1",
        "Node_1",
        "ethernet",
    )
    assert (spec.pools[0].size, spec.pools[0].gpus, spec.pools[0].ports) == ("other", 0, 0)


def test_an_empty_tree_is_no_fault(tmp_path: Path) -> None:
    assert only_pool(seen(tmp_path / "nothing"), tmp_path).gpus == 0


@pytest.mark.parametrize("vendor", ["0x10de", "0x1002"])
def test_gpus_and_infiniband_of_unknown_hardware(tmp_path: Path, vendor: str) -> None:
    here = seen(machine(tmp_path / "m", gpus=8, hcas=8, vendor=vendor))
    pool = only_pool(here, tmp_path)
    assert (pool.size, pool.gpus, pool.ports) == ("other", 8, 8)
    assert loaded(here, tmp_path).spec.fabric.rdma == "ib"


def test_azure_says_its_size(tmp_path: Path) -> None:
    here = seen(machine(tmp_path / "m", gpus=8, hcas=8, azure=True), size="Standard_ND96isr_H200_v5\n")
    pool = only_pool(here, tmp_path)
    assert (pool.size, pool.gpus, pool.ports) == ("Standard_ND96isr_H200_v5", 8, 8)


def test_a_size_no_table_has(tmp_path: Path) -> None:
    here = seen(machine(tmp_path / "m", gpus=2, azure=True), size="Standard_NC99_v9")
    assert only_pool(here, tmp_path).size == "other"
    assert "VM size Standard_NC99_v9, from the instance metadata service" in here.notes


def test_elsewhere_nobody_is_asked(tmp_path: Path) -> None:
    def never(url: str) -> str:
        raise AssertionError("asked for " + url)

    assert look(machine(tmp_path / "m"), hostname="n", run=lambda _: "", fetch=never).vm_size == ""


def test_slurm_gives_the_nodes(tmp_path: Path) -> None:
    here = seen(machine(tmp_path / "m"), sinfo=SINFO)
    assert [(p.name, p.nodes, p.gpus, p.is_default) for p in here.partitions] == [
        ("hpc", "h200-[000-003,007]", 8, True),
        ("cpu", "c[1-2]", None, False),
    ]
    found = loaded(here, tmp_path).spec
    assert (found.access.via, found.slurm.partition, str(found.nodes)) == ("slurm", "hpc", "h200-[000-003,007]")
    assert found.pools[0].gpus == 8


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("gpu:8(S:0-1)", 8),
        ("gpu:nvidia_h100_80gb_hbm3:8(S:0-1)", 8),
        ("gpu:h100:4(S:0),gpu:h100:4(S:1)", 8),
        ("gpu:h100:8(S:0-1),shard:h100:32(S:0-1)", 8),
        ("craynetwork:4,gpu:a100:4(S:0-3)", 4),
        ("shard:h100:32", None),
        ("(null)", None),
    ],
)
def test_gpus_by_what_sinfo_prints_of_generic_resources(tmp_path: Path, gres: str, gpus: int | None) -> None:
    """gres.conf(5): name, type, count, and the sockets they belong to."""
    here = seen(machine(tmp_path / "m"), sinfo=f"gpu*|ccw-1-3-gpu-[150-152,156]|{gres}\n")
    assert [(p.nodes, p.gpus) for p in here.partitions] == [("ccw-1-3-gpu-[150-152,156]", gpus)]


def test_the_notes_say_where_things_came_from(tmp_path: Path) -> None:
    root = machine(tmp_path / "m", gpus=1)
    hardware = "1 GPUs and 0 InfiniBand ports, from PCI and /sys/class/infiniband"
    assert seen(root).notes == (hardware,)
    assert seen(root, sinfo=SINFO).notes == (hardware, "2 partitions, from sinfo")


def test_programs_that_are_missing_or_fail_say_nothing() -> None:
    assert _run(["sh", "-c", "echo said"]) == "said\n"
    assert _run(["sh", "-c", "echo said; exit 1"]) == ""
    assert _run(["no-such-program-here"]) == ""


def test_without_a_default_partition_the_first_is_taken(tmp_path: Path) -> None:
    here = seen(machine(tmp_path / "m"), sinfo="b|b1|(null)\na|a1|(null)\n")
    assert str(loaded(here, tmp_path).spec.nodes) == "b1"


def test_the_real_machine_is_read_without_a_fault(tmp_path: Path) -> None:
    assert only_pool(look(fetch=lambda _: ""), tmp_path).name == "here"
