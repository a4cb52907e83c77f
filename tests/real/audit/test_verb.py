"""`fairlead audit` on this machine, on trees and on files that are none."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fairlead.cli.app import run
from fairlead.records.runs import list_runs
from support import guests, trees
from support.judging import facts_of
from support.trees import Machine

pytestmark = pytest.mark.real

HERE = """
schema = 1
[access]
via = "local"
[[pool]]
name = "here"
size = "other"
nodes = "localhost"
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.toml"
    path.write_text(HERE)
    return path


def document(capsys: pytest.CaptureFixture[str]) -> dict:
    return json.loads(capsys.readouterr().out)


def open_to_networkd() -> Machine:
    m = guests.h100("tree")
    m.put(guests.NETPLAN, f"[Match]\nMACAddress={guests.MAC}\n\n[Network]\nDHCP=ipv4\n")
    return m


def test_this_machine_twice(spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A live node, read by the program that is piped to it, two times a second apart; and judged again afterwards."""
    run(["audit", "-f", str(spec), "--runs", str(tmp_path / "runs"), "--window", "1", "--json"])
    found = document(capsys)
    assert found["nodes"] == "localhost"
    assert {"net/vf-rules", "ib/flaps", "host/swap"} <= {f["code"] for f in found["findings"]}
    (folder,) = list_runs(tmp_path / "runs")
    assert (folder / "earlier.json").exists()
    run(["rejudge", str(folder), "--json"])
    assert {f["code"] for f in document(capsys)["findings"]} >= {"net/vf-rules"}


def test_a_tree_is_shown_its_file_and_gets_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    open_to_networkd().write(tree)
    words = ["audit", "--root", str(tree), "--size", "Standard_ND96isr_H100_v5", "--json"]
    run(words)
    (fix,) = document(capsys)["fixes"]
    assert fix["path"] == "/etc/systemd/network/05-azure-sriov-unmanaged.network"
    assert "+Unmanaged=yes" in fix["diff"]
    assert not (tree / fix["path"][1:]).exists(), "nothing is written unless asked for"
    run([*words, "--write"])
    written = [f for f in document(capsys)["findings"] if f["code"] == "audit/written"]
    assert [f["verdict"] for f in written] == ["pass"]
    assert "mana" in (tree / fix["path"][1:]).read_text()
    run(words)
    assert document(capsys)["fixes"] == []


def test_two_readings_of_a_tree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, downs, uptime in (("before", 0, 1000), ("after", 2, 1060)):
        m = guests.h100("tree")
        m.put("/sys/class/infiniband/mlx5_ib1/ports/1/counters/link_downed", f"{downs}\n")
        m.put("/proc/uptime", f"{uptime}.0 1.0\n")
        (tmp_path / name).mkdir()
        m.write(tmp_path / name)
    size = ["--size", "Standard_ND96isr_H100_v5"]
    run(["audit", "--root", str(tmp_path / "after"), "--before", str(tmp_path / "before"), *size, "--json"])
    found = [f for f in document(capsys)["findings"] if f["code"] == "ib/counter-rates" and f["verdict"] == "fail"]
    assert [f["subject"]["name"] for f in found] == ["mlx5_ib1/1"]
    assert "grew by 2 in 60.0 s" in found[0]["message"]


def test_the_page_names_windows_and_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    m = open_to_networkd()
    m.put("/dev/kmsg", guests.kmsg((*guests.BOOT, *guests.TAKEN, *guests.RETURNED)))
    m.write(tree)
    run(["audit", "--root", str(tree)])
    page = capsys.readouterr().out
    assert "8160.912 s    8226.267 s  65.35" in page
    assert "+++ b/etc/systemd/network/05-azure-sriov-unmanaged.network" in page


@pytest.mark.parametrize("junk", [b"", b"\xff\xfe\x00" * 500, b"{}", b"[" * 5000, "ÄÖÜ".encode("latin-1")])
def test_junk_in_any_file_is_never_a_traceback_or_a_pass(
    junk: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every file that only an audit reads, replaced: what rests on it is unknown, or fails by another fact."""
    m = guests.h100("tree")
    for path in (guests.STATS, guests.CHANNELS, guests.SOCKETS, guests.JOURNAL, guests.MODULES, "/dev/kmsg",
                 "/proc/net/packet", guests.NETPLAN, "/etc/slurm/slurm.conf", "/etc/slurm/gres.conf"):  # fmt: skip
        m.put(path, junk)
    tree = tmp_path / "tree"
    tree.mkdir()
    m.write(tree)
    run(["audit", "--root", str(tree), "--size", "Standard_ND96isr_H100_v5", "--json"])
    found = {f["code"]: f["verdict"] for f in document(capsys)["findings"]}
    for code in ("net/data-path", "net/vf-share", "net/queues", "net/vf-drops"):
        assert found[code] in ("unknown", "skip"), code


def test_a_pipe_in_place_of_a_log_is_not_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    started = time.monotonic()
    run(["audit", "--kernel-log", str(pipe), "--json"])
    assert document(capsys)["error"]["code"] == "audit/no-log-lines"
    assert time.monotonic() - started < 30


@pytest.mark.parametrize(
    "words",
    [
        ["--size", "Standard_ND96isr_H100_v5", "-w", "n0"],
        ["--kernel-log", "x", "--write"],
        ["--root", ".", "--window", "5"],
        ["--before", ".", "-w", "n0"],
        ["--window", "-1"],
        ["--root", ".", "-w", "n0"],
    ],
)
def test_words_that_contradict_each_other(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    run(["audit", *words, "--json"])
    assert document(capsys)["error"]["code"] == "cli/usage"


def alone(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    """Somebody logged in on one machine: no cluster file, no lab."""
    monkeypatch.chdir(place)
    monkeypatch.delenv("FAIRLEAD_SPEC", raising=False)
    monkeypatch.setenv("FAIRLEAD_LABS", str(place / "labs"))


@pytest.mark.parametrize("words", [[], ["--root", "/"], ["--window", "0.1"]])
def test_without_a_cluster_file_this_machine_is_audited(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    alone(monkeypatch, tmp_path)
    run(["audit", *words, "--json"])
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "fairlead.audit/1", document
    hostname = Path("/proc/sys/kernel/hostname").read_text().strip().split(".")[0]
    assert document["nodes"] == hostname
    assert "host/kernel-faults" in {f["code"] for f in document["findings"]}


def test_a_tree_whose_folder_no_node_can_be_called_goes_by_its_host_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("gpu node 7!", "another one"):
        guests.h100("gpu7").write(tmp_path / name)
    run(["audit", "--root", str(tmp_path), "--json"])
    assert json.loads(capsys.readouterr().out)["nodes"] == "gpu7,gpu7-1"


@pytest.mark.parametrize(
    ("machine", "size"), [(guests.h100, "Standard_ND96isr_H100_v5"), (trees.plain, ""), (trees.Machine, "")]
)
def test_this_machine_is_what_the_platform_calls_it(machine: Callable[[], trees.Machine], size: str) -> None:
    from fairlead.cli.audit import _platforms_size

    assert _platforms_size(facts_of(machine())) == size
