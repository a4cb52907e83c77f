"""What the readers make of each kind of machine, and that one broken part costs no other."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.probe.readers.nvidia import bus_address
from fairlead.records.facts import Facts, Unread
from support import trees
from support.judging import facts_of, small


def read(machine: trees.Machine) -> Facts:
    return Facts(facts_of(machine))


def holes(machine: trees.Machine) -> dict[str, str]:
    return dict(read(machine).holes())


def test_h100() -> None:
    f = read(trees.nd_h100_v5())
    port = f.get("ib.devices.mlx5_ib3.ports.1")
    assert {k: port[k] for k in ("state", "phys_state", "rate", "link_layer", "lid", "sm_lid")} == {
        "state": "4: ACTIVE",
        "phys_state": "5: LinkUp",
        "rate": "400 Gb/sec (4X NDR)",
        "link_layer": "InfiniBand",
        "lid": "0x103",
        "sm_lid": "0x1",
    }
    assert port["pkeys"] == {"0": "0x8001", "1": "0x7fff"}
    assert list(port["gids"]) == ["0"]
    assert f.get("ib.devices.mlx5_ib3.pci") == "0104:00:00.0"
    assert f.get("ib.devices.mlx5_ib3.driver") == "mlx5_core"
    assert f.get("ib.devices.mlx5_ib3.netdevs") == ["ib3"]
    assert f.get("ib.devices.mlx5_an0.ports.1.rate") == "40 Gb/sec (4X QDR)"
    assert f.get("net.links.enP1s1.master") == "eth0"
    assert f.get("net.links.eth0.driver") == "hv_netvsc"
    assert f.get("net.links.eth0.addresses") == ["10.0.0.4/24"]
    assert f.get("net.default_interface") == "eth0"
    assert len(f.get("nvidia.smi.gpus")) == 8
    gpu = f.get("nvidia.smi.gpus", "0003:00:00.0")
    assert gpu["product_name"] == "NVIDIA H100 80GB HBM3"
    assert gpu["fabric"]["state"] == "Completed"
    assert "supported_clocks" not in gpu
    assert len(f.get("nvidia.nvlink.links", gpu["uuid"])) == 18
    assert f.get("nvidia.driver.version") == "580.95.05"
    assert f.get("nvidia.driver.open") is True
    assert f.get("nvidia.driver.gpus", "0003:00:00.0", "excluded") == "No"
    assert f.get("nvidia.driver.dev") == [f"nvidia{i}" for i in range(8)]
    assert f.get("host.identity.kvp")["PhysicalHostName"] == "LAB000000000001"
    assert f.get("host.limits.memlock") == {"soft": "unlimited", "hard": "unlimited"}
    assert f.get("host.environment") == {"NCCL_DEBUG": "WARN", "NCCL_SOCKET_IFNAME": "eth0"}
    assert f.get("host.cpu.numa.node1") == {"cpulist": "48-95", "meminfo": {"total_kb": 957535500}}
    assert f.get("mounts.local", "/mnt/resource_nvme", "fstype") == "xfs"
    assert f.get("mounts.remote", "/shared/home", "device") == "10.1.0.4:/home"
    assert len(f.get("nvme.disks")) == 8
    assert f.get("versions.packages") == {"torch": "2.9.1+cu130", "nccl": "2.27.7", "rccl": "", "numpy": ""}
    assert f.get("versions.nccl_system") == "2.27.7"
    assert f.get("versions.cuda") == "13.0.1"
    assert f.get("versions.ofed") == "MLNX_OFED_LINUX-24.10-1.1.4.0"
    assert f.get("versions.rdma_core") == "50.0"
    assert f.get("versions.rdma_modules") == dict.fromkeys(("ib_core", "mlx5_core", "mlx5_ib"), "24.10-1.1.4")
    assert f.get("clock.chrony")["leap"] == "Normal"
    assert f.get("services.units")["nvidia-fabricmanager"]["active"] == "active"
    assert f.get("slurm.files") == ["slurm.conf"]
    assert f.record.taken_at_ns == trees.TAKEN_AT_NS


def test_where_facts_come_from() -> None:
    f = read(small())
    assert (
        f.source(("ib", "devices", "mlx5_ib0", "ports", "1", "rate")) == "/sys/class/infiniband/mlx5_ib0/ports/1/rate"
    )
    assert f.source(("pci", "devices", "0101:00:00.0", "class")) == "/sys/bus/pci/devices/0101:00:00.0/class"
    assert f.source(("nvidia", "smi", "gpus", "0001:00:00.0", "uuid")) == "nvidia-smi -q -x"
    assert f.source(("net", "links", "eth0", "mtu")) == "/sys/class/net/eth0/mtu"
    assert f.source(("host", "memory", "MemTotal")) == "/proc/meminfo"


@pytest.mark.parametrize(
    ("line", "version", "is_open"),
    [
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023",
            "535.129.03",
            False,
        ),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build  (dvs-builder@U16)",
            "570.124.06",
            True,
        ),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05  Release Build  (dvs-builder@U16)",
            "580.95.05",
            True,
        ),
        ("NVRM version: NVIDIA UNIX Kernel Module for aarch64  34.1.1  Release Build", "34.1.1", False),
    ],
)
def test_driver_versions_on_every_architecture(line: str, version: str, is_open: bool) -> None:
    m = small()
    m.put("/proc/driver/nvidia/version", f"{line}\nGCC version:  gcc version 12.3.0\n")
    f = read(m)
    assert (f.get("nvidia.driver.version"), f.get("nvidia.driver.open")) == (version, is_open)


def test_bus_addresses() -> None:
    assert bus_address("00000001:00:00.0") == "0001:00:00.0"
    assert bus_address("0000CAFE:1A:00.0") == "cafe:1a:00.0"
    assert bus_address("GPU-1") == ""


def test_arm_names_no_model() -> None:
    f = read(trees.nd_gb300_v6())
    assert f.get("host.cpu.model") == "arm implementer 0x41 part 0xd4f"
    assert f.get("host.os.arch") == "aarch64"


def test_amd() -> None:
    f = read(trees.nd_mi300x_v5())
    assert f.get("amd.loaded") is True
    assert len(f.get("amd.kfd")) == 8
    assert f.get("amd.tool")["argv"][0] == "rocm-smi"
    assert f.get("versions.nccl_system") == "1.0.70000"


def test_a_machine_without_gpus_or_hcas_has_none() -> None:
    f = read(trees.plain())
    assert f.get("ib.devices") == {}
    assert f.get("nvidia.driver.gpus") == {}
    assert f.get("pci.devices") == {}
    assert f.get("amd.loaded") is False
    with pytest.raises(Unread, match="no such command"):
        f.get("nvidia.smi")


def test_one_port_that_cannot_be_read_costs_only_itself() -> None:
    """ibstat dies half way when a device has gone; here the rest stands (gpud#752)."""
    m = small()
    m.put("/sys/class/infiniband/mlx5_ib0/ports/1/rate", b"\x80\x81junk")
    m.remove("/sys/class/infiniband/mlx5_ib0/fw_ver")
    found = holes(m)
    assert {k for k in found if k.startswith("ib.")} == {
        "ib.devices.mlx5_ib0.ports.1.rate",
        "ib.devices.mlx5_ib0.fw_ver",
    }


def test_a_counter_without_a_number() -> None:
    m = small()
    m.put("/sys/class/infiniband/mlx5_ib0/ports/1/counters/symbol_error", "N/A (no PMA)\n")
    assert holes(m)["ib.devices.mlx5_ib0.ports.1.counters.symbol_error"] == "is not a number: N/A (no PMA)"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is not whole XML: no element found"),
        ("<nvidia_smi_log><gpu id='00000001:00:00.0'><uuid>GPU-1</uuid>", "is not whole XML"),
        ("<html>Not Found</html>", "is not an nvidia_smi_log document"),
        (
            '<!DOCTYPE x [<!ENTITY a "aaaa">]><nvidia_smi_log>&a;</nvidia_smi_log>',
            "is not what nvidia-smi prints: it declares entities",
        ),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", "says: NVIDIA-SMI has"),
    ],
)
def test_half_an_answer_of_nvidia_smi(text: str, why: str) -> None:
    m = small()
    m.put(trees.SMI, text)
    assert why in holes(m)["nvidia.smi"]


def test_inactive_nvlinks_are_kept_as_said() -> None:
    m = small()
    m.edit(trees.NVLINK, "Link 7: 26.562 GB/s", "Link 7: <inactive>", count=1)
    f = read(m)
    links: dict[str, Any] = next(iter(f.get("nvidia.nvlink.links").values()))
    assert links["7"] == "<inactive>"
    assert links["8"] == "26.562 GB/s"


def test_secrets_stay_on_the_node() -> None:
    m = small()
    m.put(
        "/proc/self/environ",
        "NCCL_DEBUG=WARN\0AWS_SECRET_ACCESS_KEY=x\0UCX_TOKEN=y\0OMPI_MCA_btl=tcp\0HOME=/root\0SLURM_JOB_ID=7\0SLURM_JWT=z\0",
    )
    assert read(m).get("host.environment") == {"NCCL_DEBUG": "WARN", "OMPI_MCA_btl": "tcp", "SLURM_JOB_ID": "7"}


def test_a_later_mount_hides_an_earlier_one() -> None:
    m = small()
    m.put("/proc/self/mounts", m.text("/proc/self/mounts") + "/dev/sdz9 / ext4 rw 0 0\n")
    assert read(m).get("mounts.local", "/", "device") == "/dev/sdz9"


def test_a_repeating_driver_does_not_push_others_out_of_the_log() -> None:
    m = small()
    flood = "".join(
        f"4,{i},{i}000000,-;mlx5_core 0101:00:00.0: mlx5_cmd_out_err:839:(pid {i}): ACCESS_REG failed\n"
        for i in range(1, 5000)
    )
    m.put("/dev/kmsg", "3,0,1000000,-;NVRM: Xid (PCI:0001:00:00): 79, pid=1, GPU has fallen off the bus.\n" + flood)
    lines = read(m).get("kernel_log.lines")
    assert any("Xid" in text for _, _, text in lines)
    assert len(lines) < 200


def test_a_process_name_may_hold_brackets_and_blanks() -> None:
    m = small()
    m.put("/proc/500/stat", "500 (a) D (b c) D 412 500 500 0 -1 0\n")
    assert read(m).get("processes.blocked") == [[500, "a) D (b c"]]


def test_without_systemd_there_are_no_services() -> None:
    m = small()
    m.remove("/run/systemd/system")
    m.absent.add("/run/systemd/system")
    f = read(m)
    assert f.get("services") == {"manager": "none", "units": {}, "failed": []}


def test_a_table_with_a_gap_has_a_hole() -> None:
    m = small()
    m.remove("/sys/class/infiniband/mlx5_ib0/ports/1/pkeys/0")
    assert "ib.devices.mlx5_ib0.ports.1.pkeys.0" in holes(m)


def test_metadata() -> None:
    m = trees.plain()
    m.put(
        "/http/169.254.169.254_metadata",
        '{"vmId": "1", "vmSize": "Standard_D8s_v6", "publicKeys": [{"keyData": "secret"}]}',
    )
    assert read(m).get("imds.compute") == {"vmId": "1", "vmSize": "Standard_D8s_v6"}
