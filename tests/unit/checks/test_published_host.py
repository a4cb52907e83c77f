# ruff: noqa: E501 - one line a row, as the kernel or a tool writes it
"""Mounts, clocks, units and processes as published nodes show them, from the tree to the verdict.

Written from man 5 proc_mounts (blanks are `\\040`) and the mounts that cloud images, Lustre, blobfuse2 and containers make;
chronyc(1), `-c tracking` and its leap words; timedatectl(1), `show`; systemctl(1); man 5 proc_pid_stat.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fairlead.records.verdict import Verdict
from support import trees
from support.judging import judged, small
from support.trees import CHRONYC, SYSTEMCTL_FAILED, Machine, mounts

FAIL, WARN, UNKNOWN = Verdict.FAIL, Verdict.WARN, Verdict.UNKNOWN
Found = set[tuple[str, str, Verdict]]
Edit = Callable[[Machine], None]
NVME = ("/dev/md0", "/mnt/resource_nvme", "xfs", "rw,relatime", 26000, 0.1)


def told(m: Machine) -> Found:
    fine = (Verdict.PASS, Verdict.SKIP)
    return {(f.code, f.subject.name, f.verdict) for f in judged(m) if f.verdict not in fine}


def mounted(*rows: tuple[str, str, str, str, int, float]) -> Edit:
    return lambda m: mounts(m, (NVME, *rows))


def root(options: str) -> Edit:
    return lambda m: m.edit("/proc/self/mounts", "/dev/sda1 / ext4 rw,relatime,discard", f"/dev/sda1 / ext4 {options}")


def chrony(offset: str = "0.000004120", leap: str = "Normal", ref: str = "PHC0") -> Edit:
    return lambda m: m.cmd(
        CHRONYC,
        f"50484330,{ref},2,1795000000.1,{offset},0.0000031,0.000012,-8.1,0.001,0.02,0.0001,0.00001,32.0,{leap}\n",
    )


def stat(*lines: str) -> Edit:
    def apply(m: Machine) -> None:
        for number, line in enumerate(lines, 5000):
            m.put(f"/proc/{number}/stat", line.format(pid=number) + "\n")

    return apply


HEALTHY: dict[str, Edit] = {
    "a root that is to turn read-only on errors": root("rw,relatime,discard,errors=remount-ro"),
    "a disk image of provisioning": mounted(("/dev/sr0", "/media/cdrom", "iso9660", "ro,relatime", 1, 1.0)),
    "snaps on erofs": mounted(("/dev/loop3", "/snap/snapd/21759", "erofs", "ro,nodev,relatime", 1, 1.0)),
    "variables of the firmware": mounted(("efivarfs", "/sys/firmware/efi/efivars", "efivarfs", "rw,nosuid,nodev", 1, 0.5)),
    "software, read-only": mounted(("10.1.0.4:/sw", "/opt/sw", "nfs4", "ro,relatime,vers=4.1", 500, 0.99)),
    "Lustre, nearly full": mounted(("10.1.0.10@tcp:/lustrefs", "/amlfs", "lustre", "rw,checksum,flock", 100_000, 0.97)),
    "blobs": mounted(("blobfuse2", "/blob", "fuse.blobfuse2", "rw,nosuid,nodev,relatime,allow_other", 1_000_000, 0.0)),
    "a layer of a container": mounted(("overlay", "/var/lib/docker/overlay2/3f/merged", "overlay", "rw,relatime,lowerdir=/var/lib/docker/overlay2/l/ABC", 124, 0.3)),
    "a leap second ahead": chrony(leap="Insert second"),
    "an hour's drift that is being made up": chrony(offset="-0.031"),
    "programs with odd names": stat("{pid} (((sd-pam))) S 1 {pid} {pid} 0 -1 4194560 1 2 3 4", "{pid} (kworker/u96:3-ib_addr) D 2 0 0 0 -1 69238880 0 0 0 0", "{pid} (a) D (b)) S 1 {pid} {pid} 0 -1 4194560 1 2 3 4"),
    "a few zombies of a shell": stat(*["{pid} (sh) Z 1 1 1 0 -1 4228172 0 0 0 0"] * 5),
}  # fmt: skip

FAULTS: dict[str, tuple[Edit, Found]] = {
    "a root turned read-only": (root("ro,relatime,discard,errors=remount-ro"), {("host/read-only", "/", FAIL)}),
    "a root turned read-only, in newer words": (root("ro,relatime,discard,errors=remount-ro,emergency_ro"), {("host/read-only", "/", FAIL)}),
    "a full scratch disk": (lambda m: mounts(m, ((*NVME[:5], 0.97),)), {("host/disk-space", "/mnt/resource_nvme", FAIL)}),
    "no source of time": (chrony(leap="Not synchronised", ref="7F7F0101"), {("host/clock", "", WARN)}),
    "a clock far behind": (chrony(offset="-12.300000000"), {("host/clock", "", WARN)}),
    "a unit that failed": (lambda m: m.cmd(SYSTEMCTL_FAILED, "nvidia-fabricmanager-check.service loaded failed failed Check the fabric\n"), {("host/failed-services", "", WARN)}),
    "a unit that failed, with its mark": (lambda m: m.cmd(SYSTEMCTL_FAILED, "● sku-customizations.service loaded failed failed Customizations per VM SKU\n"), {("host/failed-services", "", WARN)}),
    "two dozen zombies": (stat(*["{pid} (python3) Z 1 1 1 0 -1 4228172 0 0 0 0"] * 24), {("host/stuck-processes", "", WARN)}),
}  # fmt: skip


@pytest.mark.parametrize("name", HEALTHY)
def test_a_good_host(name: str) -> None:
    m = small()
    HEALTHY[name](m)
    assert told(m) == set()


@pytest.mark.parametrize("name", FAULTS)
def test_a_bad_host(name: str) -> None:
    edit, label = FAULTS[name]
    m = small()
    edit(m)
    assert told(m) == label


def test_a_file_server_that_does_not_answer_is_unknown() -> None:
    m = small()
    m.remove(trees.cmd_path(["stat", "-f", "-c", trees.FORMAT, "/shared/home"]))
    assert told(m) == {("host/remote-mount", "/shared/home", UNKNOWN)}
