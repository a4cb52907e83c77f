"""What a host shows: complete, consistent with itself, and read back from a captured folder unchanged."""

from __future__ import annotations

import contextlib
import os
import subprocess
import xml.etree.ElementTree as ET

import pytest

from fairlead.lab import anchor, hosttree

PORTS = [
    {"device": f"eth{p + 1}", "mac": f"02:0{p}:00:01:00:02", "address": f"fcbb::{p}", "gbps": 100} for p in range(2)
]
WHAT = hosttree.shows("n5", 5, gpus=3, ports=PORTS)


def test_tools_and_files_agree_on_the_gpus():
    tree = hosttree.generated(WHAT)
    smi = ET.fromstring(tree["run/fairlead/cmd/nvidia-smi_-q_-x"])
    uuids = [gpu.findtext("uuid") for gpu in smi.findall("gpu")]
    assert smi.findtext("attached_gpus") == "3"
    assert smi.findtext("driver_version") == tree["sys/module/nvidia/version"].strip()
    assert len(set(uuids)) == 3
    for number, uuid in enumerate(uuids):
        bus = hosttree.gpu_bus(number)
        assert uuid in tree[f"proc/driver/nvidia/gpus/{bus}/information"]
        assert uuid in tree["run/fairlead/cmd/nvidia-smi_-L"]
        assert tree[f"sys/bus/pci/devices/{bus}/vendor"] == "0x10de\n"


def test_each_plane_has_an_hca_with_its_own_identity():
    tree = hosttree.generated(WHAT)
    guids = {tree[f"sys/class/infiniband/mlx5_{p}/node_guid"] for p in range(2)}
    assert len(guids) == 2
    assert tree["sys/class/infiniband/mlx5_1/ports/1/gid_attrs/ndevs/0"] == "eth2\n"
    link = tree["sys/class/infiniband/mlx5_1/device"].removeprefix(hosttree.LINK)
    assert link == f"../../../bus/pci/devices/{hosttree.hca_bus(1)}"
    assert f"sys/bus/pci/devices/{hosttree.hca_bus(1)}/vendor" in tree


def test_two_hosts_are_not_mistaken_for_one_another():
    other = hosttree.shows("n6", 6, gpus=3, ports=PORTS)
    assert hosttree.smi_xml(WHAT) != hosttree.smi_xml(other)


def test_a_host_without_parts_shows_none():
    assert hosttree.generated(hosttree.shows("head", 9, gpus=0, ports=[])) == {}
    assert hosttree.device_names(hosttree.shows("head", 9, gpus=0, ports=[])) == []


def test_a_captured_folder_is_shown_as_it_is(tmp_path):
    (tmp_path / "sys/class").mkdir(parents=True)
    (tmp_path / "sys/class/x").write_bytes(b"\xff\x00")
    (tmp_path / "sys/class/l").symlink_to("../bus")
    (tmp_path / "cmd").mkdir()
    (tmp_path / "cmd/ibstat_-l").write_text("mlx5_0\n")
    tree = hosttree.captured(str(tmp_path))
    assert tree["sys/class/x"] == b"\xff\x00"
    assert tree["sys/class/l"] == hosttree.LINK + "../bus"
    assert tree["run/fairlead/cmd/ibstat_-l"] == b"mlx5_0\n"
    assert "usr/local/bin/ibstat" in tree


def test_the_stand_in_prints_what_is_recorded_and_passes_the_rest_on(tmp_path):
    program = tmp_path / "uname"
    program.write_text(
        hosttree.shims({"run/fairlead/cmd/uname_-m": ""})["usr/local/bin/uname"].replace("/run/fairlead", str(tmp_path))
    )
    program.chmod(0o755)
    (tmp_path / "cmd").mkdir()
    (tmp_path / "cmd/uname_-m").write_text("made-up\n")
    (tmp_path / "cmd/uname_-m.rc").write_text("3\n")
    recorded = subprocess.run([program, "-m"], capture_output=True, text=True)
    assert (recorded.stdout, recorded.returncode) == ("made-up\n", 3)
    assert subprocess.run([program, "-s"], capture_output=True, text=True).stdout == "Linux\n"


# ---- trees that mean harm --------------------------------------------------------------------------------------------


def tree_with_link(folder, link, target, command="ibstat_-l"):
    (folder / link).parent.mkdir(parents=True, exist_ok=True)
    (folder / link).symlink_to(target)
    (folder / "cmd").mkdir(exist_ok=True)
    (folder / "cmd" / command).write_text("mlx5_0\n")
    return folder


@pytest.mark.parametrize(
    "link", ["usr/local/bin", "usr/local", "usr", "sys/class", "sys", "proc/driver", "run", "etc", "var"]
)
def test_a_captured_tree_with_a_link_where_the_lab_writes_is_refused(tmp_path, link):
    tree_with_link(tmp_path / "n1", link, tmp_path / "outside")
    with pytest.raises(OSError, match="has a link where the lab writes") as caught:
        hosttree.captured(str(tmp_path / "n1"))
    assert caught.value.filename == str(tmp_path / "n1" / link)


def test_a_captured_tree_with_a_pipe_or_a_file_without_end_is_refused(tmp_path):
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "version")
    (tmp_path / "large").mkdir()
    with (tmp_path / "large" / "version").open("wb") as file:
        file.truncate(1 << 40)
    for name in ("pipe", "large"):
        with pytest.raises(OSError, match=r"not a regular file|larger than"):
            hosttree.captured(str(tmp_path / name))


@pytest.mark.parametrize(
    "files",
    [
        {"usr/local/bin": "{LINK}{out}", "usr/local/bin/ibstat": "#!/bin/sh\n"},
        {"run/cmd": "{LINK}{out}", "run/cmd/file": "x"},
        {"sys/class/x": "{LINK}{out}/file", "sys/class/../class/x": "x"},
        {"../../file": "x"},
        {"etc/x": "{LINK}{out}/file", "etc//x": "x"},
        {"etc/d": "{LINK}{out}", "etc/d/": ""},
    ],
)
def test_furnishing_a_host_writes_nothing_through_a_link(tmp_path, monkeypatch, files):
    stage, out = tmp_path / "a" / "b" / "stage", tmp_path / "out"
    stage.mkdir(parents=True)
    out.mkdir()
    monkeypatch.setattr(anchor, "_STAGE", stage)
    said = {path: text.format(LINK=hosttree.LINK, out=out) for path, text in files.items()}
    with contextlib.suppress(OSError, ValueError):
        anchor._write_tree(said, ())
    assert list(out.iterdir()) == []
    assert {p.name for p in tmp_path.iterdir()} == {"a", "out"}
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["b"]
