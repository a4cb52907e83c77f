"""Which file keeps a manager off virtual functions: by what runs, else by the distribution; none beside a conflict."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fairlead.audit import plan
from fairlead.audit.apply import Answer, diff
from fairlead.audit.fix import Fix
from fairlead.audit.onnode.put import digest_of, put
from fairlead.checks import judge_node
from fairlead.checks.audits import AUDIT_BY_CODE
from fairlead.checks.node import Node
from fairlead.records.facts import Facts
from support import guests, trees
from support.judging import SMALL, facts_of, verdict
from support.trees import Machine

ONLY_MAC = f"[Match]\nMACAddress={guests.MAC}\n\n[Network]\nDHCP=ipv4\n"


def by_nm(m: Machine) -> None:
    for path in (f"/run/systemd/netif/links/{guests.VF_INDEX}", guests.NETPLAN):
        del m.files[path]
    for path in ("/run/NetworkManager", f"/run/NetworkManager/devices/{guests.VF_INDEX}"):
        m.absent.discard(path)
    guests.managed_by(m, "NetworkManager")
    m.put(guests.UDEV_RULE, "# nothing\n")


def by_networkd(m: Machine) -> None:
    m.put(guests.NETPLAN, ONLY_MAC)


def image(release: str) -> Callable[[Machine], None]:
    """A tree of an image that does not run: neither /run nor /sys."""

    def strip(m: Machine) -> None:
        for table in (m.files, m.links):
            for path in [p for p in table if p.startswith(("/run/", "/sys/", "/proc/", "/cmd/"))]:
                del table[path]  # type: ignore[attr-defined]
        m.put("/etc/os-release", release)

    return strip


PLANS: dict[str, tuple[Callable[[Machine], object], str]] = {
    "networkd takes by MAC address": (by_networkd, "/etc/systemd/network/05-azure-sriov-unmanaged.network"),
    "NetworkManager takes all": (by_nm, "/etc/udev/rules.d/68-azure-sriov-nm-unmanaged.rules"),
    "nothing is open": (lambda m: m, ""),
}


@pytest.mark.parametrize("name", PLANS)
def test_the_running_manager_decides(name: str) -> None:
    change, path = PLANS[name]
    m = guests.h100()
    change(m)
    fix = plan(facts_of(m))
    assert fix.path == path
    assert fix.is_needed == bool(path)


@pytest.mark.parametrize("change", [by_networkd, by_nm])
def test_the_file_mends_what_it_is_for(change: Callable[[Machine], None]) -> None:
    """Written where it belongs, the check that asked for it passes: for mlx4, mlx5 and MANA."""
    m = guests.h100()
    change(m)
    fix = plan(facts_of(m))
    m.put(fix.path, fix.content)
    m.absent.discard(str(Path(fix.path).parent))
    found = judge_node(Node(Facts(facts_of(m)), SMALL), [AUDIT_BY_CODE["net/vf-rules"]])
    assert verdict(found, "net/vf-rules") == "pass"
    assert not plan(facts_of(m)).is_needed


IMAGES = {
    'ID="rhel"\nVERSION_ID="9.4"\n': "udev",
    "ID=almalinux\nVERSION_ID=8.10\n": "udev",
    'ID="sles"\nVERSION_ID="15.6"\n': "udev",
    "ID=ubuntu\nVERSION_ID=24.04\n": "network",
    "ID=debian\nVERSION_ID=12\n": "network",
    "ID=flatcar\nVERSION_ID=4230.2.0\n": "network",
    "ID=plan9\nVERSION_ID=4\n": "",
}


@pytest.mark.parametrize("release", IMAGES)
def test_of_an_image_the_distribution_decides(release: str) -> None:
    m = guests.h100()
    image(release)(m)
    fix = plan(facts_of(m))
    assert bool(fix.path) == bool(IMAGES[release])
    assert IMAGES[release] in fix.path


def test_two_managers_that_compete_get_no_file() -> None:
    m = guests.h100()
    by_networkd(m)
    m.absent.discard("/run/NetworkManager")
    m.put(f"/run/NetworkManager/devices/{guests.VF_INDEX}", "managed=false\n")
    m.put(guests.UDEV_RULE, "# nothing\n")
    fix = plan(facts_of(m))
    assert (fix.path, fix.is_needed) == ("", True)
    assert "takes eth0" in fix.why


def test_rails_of_roce_are_not_taken_away() -> None:
    """An Ethernet interface of the same driver with an address of its own: a rule by driver would unmanage it."""
    m = guests.h100()
    by_networkd(m)
    trees.pci(m, "0201:00:00.0", vendor="0x15b3", device="0x1021", kind="0x020000", numa=0, driver="mlx5_core")
    device = "bus/pci/devices/0201:00:00.0"
    trees.netdev(m, "rail0", mac="02:0:0:0:0:1", mtu=9000, driver="mlx5_core", device=device, address="172.16.0.1/24")
    fix = plan(facts_of(m))
    assert (fix.path, fix.is_needed) == ("", True)
    assert "rail0" in fix.why


def test_a_hole_gives_no_file() -> None:
    m = guests.h100()
    by_networkd(m)
    m.remove("/run/systemd/network")
    assert plan(facts_of(m)).path == ""


# ---- writing ---------------------------------------------------------------------------------------------------------


PATH = "/etc/udev/rules.d/68-x.rules"


def test_what_was_shown_is_what_is_replaced(tmp_path: Path) -> None:
    shown = put("show", str(tmp_path), PATH, "", b"")
    assert shown == {"old": None, "digest": ""}
    assert put("write", str(tmp_path), PATH, "", b"one\n")["done"]
    again = put("show", str(tmp_path), PATH, "", b"")
    assert again == {"old": "one\n", "digest": digest_of(b"one\n")}
    assert put("write", str(tmp_path), PATH, again["digest"], b"two\n")["done"]
    assert (tmp_path / PATH[1:]).read_bytes() == b"two\n"
    assert (tmp_path / PATH[1:]).stat().st_mode & 0o777 == 0o644
    assert [p.name for p in (tmp_path / PATH[1:]).parent.iterdir()] == ["68-x.rules"]


def test_a_file_that_changed_meanwhile_is_left_alone(tmp_path: Path) -> None:
    put("write", str(tmp_path), PATH, "", b"mine\n")
    found = put("write", str(tmp_path), PATH, digest_of(b"yours\n"), b"new\n")
    assert "has changed" in found["error"]
    assert (tmp_path / PATH[1:]).read_bytes() == b"mine\n"


@pytest.mark.parametrize("where", ["etc", "etc/udev/rules.d", "etc/udev/rules.d/68-x.rules"])
def test_no_link_leads_out_of_the_tree(tmp_path: Path, where: str) -> None:
    """A captured tree of somebody else's may hold links into this machine."""
    outside, tree = tmp_path / "outside", tmp_path / "tree"
    (outside / "udev/rules.d").mkdir(parents=True)
    (tree / where).parent.mkdir(parents=True, exist_ok=True)
    (tree / where).symlink_to(outside)
    found = put("write", str(tree), PATH, "", b"x\n")
    assert "error" in found
    assert [p for p in outside.rglob("*") if p.is_file()] == []


def test_a_path_that_climbs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    assert "error" in put("write", str(tmp_path / "tree"), "/../evil", "", b"x\n")
    assert not (tmp_path / "evil").exists()


def test_the_diff_shows_what_would_change() -> None:
    fix = Fix("n0", "why", PATH, "a\nb\n")
    assert "--- /dev/null" in diff(fix, Answer())
    assert "-x" in diff(fix, Answer(old="x\nb\n"))
    assert diff(fix, Answer(old="a\nb\n")) == ""
