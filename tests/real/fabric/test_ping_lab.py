"""`fairlead fabric ping` in a live lab: trunks that are lossy, late and dead are named, each by its own symptom."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.lab.faults.apply import heal, inject
from fairlead.lab.up import down
from fairlead.spec.loader import load
from support.injector import FAIRLEAD
from support.labs import fresh_name

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.requires("root", "netns", "srv6", "nft")]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[Path]:
    """The cluster file of a lab that is up: two T0s with two nodes each, two T1s, two planes."""
    name = fresh_name()
    file = tmp_path_factory.mktemp("lab") / "cluster.toml"
    file.write_text(
        f'schema = 1\n[cluster]\nname = "{name}"\n[access]\nvia = "lab"\n'
        f'[[pool]]\nname = "lab"\nsize = "lab"\nnodes = "n[0-3]"\npython = "{sys.executable}"\n'
        '[fabric]\nlink = "ethernet"\nrdma = "mrc"\nplanes = 2\nt0 = 2\nt1 = 2\n'
    )
    up = subprocess.run([*FAIRLEAD, "lab", "up", "-f", str(file)], capture_output=True, text=True, timeout=120)
    assert up.returncode == 0, up.stderr
    yield file
    down(name)


def pinged(cluster: Path, folder: Path, *words: str) -> tuple[int, dict]:
    command = [*FAIRLEAD, "fabric", "ping", "-f", str(cluster), "--runs", str(folder), "--json", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_all_paths_of_a_healthy_fabric_are_timed(cluster, tmp_path) -> None:
    code, answer = pinged(cluster, tmp_path)
    assert (code, answer["verdict"], answer["findings"]) == (0, "pass", [])
    # each node: two planes, to its neighbour by the T0, to two others over two T1s, to itself by the T0 and two T1s
    assert len(answer["paths"]) == 4 * 2 * (1 + 2 * 2 + 3)
    assert all(path["sent"] == 300 and 0 < path["min_us"] < path["p99_us"] for path in answer["paths"])


def test_more_packets_than_a_node_can_keep_are_refused_before_any_is_sent(cluster, tmp_path) -> None:
    command = [*FAIRLEAD, "fabric", "ping", "-f", str(cluster), "--runs", str(tmp_path), "--count", "1000000"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "4,000,000 are the most" in done.stderr
    assert "--count 250000" in done.stderr, "16 paths each"


@pytest.mark.parametrize(
    ("fault", "on", "settings", "code", "subject", "status"),
    [
        ("loss", "p0/t0-1/t1-0", {"percent": "10"}, "preflight/packet-loss", "p0/t0-1/t1-0", 3),
        ("silent-drop", "p1/t0-0/t1-1", {}, "preflight/unreachable", "p1/t0-0/t1-1", 3),
        ("link-down", "p1/t0-1/t1-1", {}, "preflight/unreachable", "p1/t0-1/t1-1", 3),
        ("silent-drop", "p0/n2", {}, "preflight/unreachable", "n2 plane 0", 3),
    ],
)
def test_what_is_broken_is_named(  # noqa: PLR0917 - a row
    fault, on, settings, code, subject, status, cluster, tmp_path
) -> None:
    name = load(cluster).cluster.name
    inject(name, fault, on, settings)
    try:
        got, answer = pinged(cluster, tmp_path)
    finally:
        heal(name, "all")
    said = [
        (f["code"], " ".join([*f["subject"].get("nodes", []), f["subject"].get("name", "")]).strip())
        for f in answer["findings"]
    ]
    assert (got, said) == (status, [(code, subject)]), answer["findings"]
