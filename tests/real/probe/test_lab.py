"""Lab hosts, read by the program that real nodes get: a healthy lab is silent, each fault names its host."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.cli.app import run
from fairlead.lab.up import down
from support.labs import fresh_name

pytestmark = [pytest.mark.real, pytest.mark.requires("root", "netns", "srv6", "tbf", "nft")]

FILE = """
schema = 1
[cluster]
name = "{name}"
[[pool]]
name = "p"
size = "lab"
nodes = "n[0-3]"
gpus = 2
[fabric]
link = "ethernet"
rdma = "mrc"
planes = 2
t0 = 2
t1 = 1
[access]
via = "lab"
"""


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A lab of four hosts with two GPUs and two RDMA ports each."""
    folder = tmp_path_factory.mktemp("probe-lab")
    before = os.environ.get("FAIRLEAD_RUNS")
    os.environ["FAIRLEAD_RUNS"] = str(folder / "runs")
    path, name = folder / "cluster.toml", fresh_name()
    path.write_text(FILE.format(name=name))
    try:
        assert run(["lab", "up", "-f", str(path), "--quiet"]) == 0
        yield path
    finally:
        down(name)
        os.environ.pop("FAIRLEAD_RUNS") if before is None else os.environ.update(FAIRLEAD_RUNS=before)


def probed(spec: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[dict[str, Any]]]:
    """Exit status, and what is neither pass nor skip."""
    capsys.readouterr()
    status = run(["probe", "-f", str(spec), "--json"])
    document = json.loads(capsys.readouterr().out)
    return status, [f for f in document["findings"] if f["verdict"] not in ("pass", "skip")]


def test_a_healthy_lab_has_nothing_to_report(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert probed(spec, capsys) == (0, [])


PORT = "path=/sys/class/infiniband/mlx5_0/ports/1"
FAULTS = {
    "missing-hca": (["missing-hca", "n2", "hca=mlx5_1"], "ib/count", "1 of 2 RDMA ports; not there: mlx5_1 ("),
    "driver": (
        ["driver-version", "n2", "version=535.54.03"],
        "skew/gpu-driver",
        "is 535.54.03, but 570.86.15 on 3 nodes",
    ),
    "disk-full": (["disk-full", "n2"], "host/disk-space", "100 % of its space used"),
    "clock": (["clock-skew", "n2", "seconds=900"], "host/clock-skew", "s ahead of the other nodes'"),
    "rate": (["file", "n2", f"{PORT}/rate", "content=50 Gb/sec (1X EDR)"], "ib/port-rate", "expected 100 Gb/s"),
    "state": (["file", "n2", f"{PORT}/state", "content=1: DOWN"], "ib/port-state", "DOWN, LinkUp"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_names_its_host(fault: str, spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words, code, says = FAULTS[fault]
    try:
        assert run(["lab", "fault", *words, "-f", str(spec), "--quiet"]) == 0
        status, found = probed(spec, capsys)
    finally:
        run(["lab", "fault", "--heal", "all", "-f", str(spec), "--quiet"])
    assert status == 3
    hits = [f for f in found if f["code"] == code and says in f["message"]]
    assert hits, found
    assert {tuple(f["subject"]["nodes"]) for f in found} == {("n2",)}, found
    assert hits[0]["verdict"] == "fail"


def test_another_rdma_driver_is_a_warning_that_names_its_host(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        assert run(["lab", "fault", "library-version", "n2", "version=24.04-0.7.0", "-f", str(spec), "--quiet"]) == 0
        status, found = probed(spec, capsys)
    finally:
        run(["lab", "fault", "--heal", "all", "-f", str(spec), "--quiet"])
    assert status == 0
    assert {(f["code"], f["verdict"], *f["subject"]["nodes"]) for f in found} == {("skew/rdma-driver", "warn", "n2")}
    assert "RDMA driver mlx5_core is 24.04-0.7.0, but 25.01-0.6.0 on 3 nodes" in [f["message"] for f in found]


def test_a_dead_host_gives_no_answer_and_the_others_do(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        assert run(["lab", "fault", "node-dead", "n1", "-f", str(spec), "--quiet"]) == 0
        status, found = probed(spec, capsys)
    finally:
        run(["lab", "fault", "--heal", "all", "-f", str(spec), "--quiet"])
    assert status == 4
    assert [(f["code"], f["verdict"], f["subject"]["nodes"]) for f in found] == [("probe/no-answer", "unknown", ["n1"])]
