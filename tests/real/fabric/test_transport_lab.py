"""Two hosts of a live lab, four planes of micro-segments: a transfer goes on through planes that fail in its middle."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from ipaddress import IPv6Address
from pathlib import Path

import pytest

from fairlead.lab.faults.apply import heal, inject
from fairlead.lab.up import down
from fairlead.preflight.ranks import perftest
from fairlead.spec import usid
from fairlead.spec.loader import load
from support import promtext
from support.injector import FAIRLEAD
from support.labs import fresh_name

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.requires("root", "netns", "srv6", "tbf", "nft")]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[Path]:
    """The cluster file of a lab that is up."""
    name = fresh_name()
    file = tmp_path_factory.mktemp("lab") / "cluster.toml"
    file.write_text(
        f'schema = 1\n[cluster]\nname = "{name}"\n[access]\nvia = "lab"\n'
        f'[[pool]]\nname = "lab"\nsize = "lab"\nnodes = "n[0-3]"\npython = "{sys.executable}"\n'
        '[fabric]\nlink = "ethernet"\nrdma = "mrc"\nplanes = 4\nt0 = 2\nt1 = 2\n'
    )
    up = subprocess.run([*FAIRLEAD, "lab", "up", "-f", str(file)], capture_output=True, text=True, timeout=120)
    assert up.returncode == 0, up.stderr
    yield file
    down(name)


@pytest.fixture
def healed(cluster) -> Iterator[str]:
    name = load(cluster).cluster.name
    yield name
    heal(name, "all")


def shares(intervals: list[dict]) -> dict[int, float]:
    """The part of all packets that each plane was given."""
    num: Counter[int] = Counter()
    for interval in intervals:
        for way, count in interval["ways"].items():
            num[usid.parse(IPv6Address(way)).end.plane] += count
    return {plane: num[plane] / num.total() for plane in range(4)}


def test_one_plane_falls_silent_and_another_loses_its_link_while_a_transfer_goes_on(cluster, healed, tmp_path) -> None:
    words = ["fabric", "perf", "n0", "n3", "-f", str(cluster), "--runs", str(tmp_path), "--json"]
    words += ["--duration", "20", "--interval", "0.5", "--message", "65536"]
    with subprocess.Popen([*FAIRLEAD, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        seen: list[str] = []
        begin = faulty_at_s = 0.0
        for line in run.stderr:  # faults come when the transfer runs, however long it and they take to begin
            seen.append(line)
            num = sum("sent again" in said for said in seen)
            if num == 1 and not begin:
                begin = time.monotonic() - 0.5
            if num == 4 and not faulty_at_s:
                inject(healed, "silent-drop", "p1/n0", {})
                inject(healed, "link-down", "p2/n3", {})
                faulty_at_s = time.monotonic() - begin
        answer = json.loads(run.stdout.read())
    assert run.returncode == 0, seen
    assert answer["verdict"] == "pass"
    assert answer["intact"]
    assert answer["planes"] == 4
    intervals = answer["intervals"]
    late = [interval for interval in intervals[:-1] if interval["at_s"] > faulty_at_s + 2]
    before, after = shares(intervals[:3]), shares(late)
    assert min(before[plane] for plane in range(4)) > 0.1
    assert before[1] + before[2] > 0.4
    assert after[1] + after[2] < 0.2  # probes of what is bad, and what a busy machine doubts
    assert all(interval["num_bytes"] for interval in late)


def test_several_sizes_both_ways_with_the_columns_of_perftest(cluster, tmp_path) -> None:
    words = ["fabric", "perf", "n0", "n3", "-f", str(cluster), "--runs", str(tmp_path)]
    words += ["--sizes", "65536,8,4096", "--duration", "3", "--interval", "0.5", "--both", "--histogram"]
    done = subprocess.run([*FAIRLEAD, *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    (bandwidth,) = [line for line in lines if "BW peak[Gb/sec]    " in line or "BW peak[Gb/sec]  BW" in line]
    (latency,) = [line for line in lines if "t_typical[usec]" in line]
    assert bandwidth.split()[1:3] == latency.split()[1:3] == ["#bytes", "#iterations"]
    at = lines.index(latency)
    rows = [line.split() for line in lines[at + 1 : at + 7]]
    assert sorted((row[0], int(row[1])) for row in rows) == [(n, s) for n in ("n0", "n3") for s in (8, 4096, 65536)]
    for _, _, num, low, high, typical, mean, deviation, p99, p999 in rows:
        assert int(num) > 10
        assert 0 < float(low) <= float(typical) <= float(p99) <= float(p999) <= float(high)
        assert float(low) <= float(mean) <= float(high)
        assert 0 <= float(deviation) <= float(high)
    (folder,) = tmp_path.glob("*-fabric*")
    answer = json.loads((folder / "result.json").read_text())
    for head, told in ((bandwidth, "gbps"), (latency, "latency_us")):  # who reads perftest reads this
        at = lines.index(head)
        for line, row in zip(lines[at + 1 : at + 7], answer["sizes"], strict=True):
            read = perftest.parse("".join(each.split(maxsplit=1)[1] + "\n" for each in (head, line)))
            wanted = row["bits_per_s"] / 1e9 if told == "gbps" else row["p50_us"]
            assert read[told] == pytest.approx(wanted, rel=0.01, abs=0.01)
    for row in answer["sizes"]:
        assert sum(num for _, num in row["histogram"]) == row["messages"]
        assert row["bits_per_s"] <= row["peak_bps"] * 1.001
    assert answer["intact"]


def test_every_packet_of_a_transfer_is_told_by_plane_and_path_and_counted_for_prometheus(cluster, tmp_path) -> None:
    words = ["fabric", "trace", "n0", "n3", "-f", str(cluster), "--runs", str(tmp_path), "--json"]
    done = subprocess.run([*FAIRLEAD, *words], capture_output=True, text=True, timeout=120)
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["verdict"]) == (0, "pass"), done.stdout
    (folder,) = tmp_path.glob("*-fabric*")
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert len(events) == answer["events"] > 100
    sent = [e for e in events if e["what"] == "sent" and e["node"] == "n0" and e["op"].startswith("write")]
    assert {e["plane"] for e in sent} == {0, 1, 2, 3}
    assert all(usid.parse(IPv6Address(e["path"])).end.plane == e["plane"] for e in sent)
    assert len({e["path"] for e in sent}) == 4 * 2  # planes, T1s
    assert [e["at_ns"] for e in events] == sorted(e["at_ns"] for e in events)
    assert (folder / "n0.pcap").read_bytes()[:4] == (folder / "n3.pcap").read_bytes()[:4] == b"\x4d\x3c\xb2\xa1"
    assert "heuristic" in (folder / "mrc.lua").read_text()
    metrics = promtext.read((folder / "metrics.prom").read_text())
    by_way = [(dict(labels), num) for labels, num in metrics["fairlead_mrc_path_packets_total"].items()]
    assert {labels["plane"] for labels, _ in by_way} == {f"plane {p}" for p in range(4)}
    ours = sum(num for labels, num in by_way if labels["node"] == "n0")
    assert ours >= len([e for e in events if e["what"] == "sent" and e["node"] == "n0"]) - answer["left_out"]


def test_a_node_without_the_transport_is_told_what_to_install(cluster, tmp_path) -> None:
    other = tmp_path / "cluster.toml"
    other.write_text(cluster.read_text().replace(sys.executable, "/usr/bin/python3"))
    words = ["fabric", "perf", "n0", "n3", "-f", str(other), "--runs", str(tmp_path), "--json", "--duration", "1"]
    begin = time.monotonic()
    done = subprocess.run([*FAIRLEAD, *words], capture_output=True, text=True, timeout=120)
    assert json.loads(done.stdout)["missing"]["code"] == "fabric/no-transport"
    assert done.returncode == 4
    assert time.monotonic() - begin < 60


def test_batches_are_refused_over_steered_paths_in_one_sentence(cluster, tmp_path) -> None:
    words = ["fabric", "perf", "n0", "n3", "-f", str(cluster), "--runs", str(tmp_path), "--duration", "1", "--gso"]
    done = subprocess.run([*FAIRLEAD, *words], capture_output=True, text=True, timeout=120)
    assert done.returncode not in (0, 1), done.stderr
    assert "whose packets carry no UDP checksum" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_measurement_with_switches_that_trim(tmp_path) -> None:
    name = fresh_name()
    file = tmp_path / "cluster.toml"
    file.write_text(
        f'schema = 1\n[cluster]\nname = "{name}"\n[access]\nvia = "lab"\n[lab]\ntrim_kib = 32\n'
        f'[[pool]]\nname = "lab"\nsize = "lab"\nnodes = "n[0-1]"\npython = "{sys.executable}"\n'
        '[fabric]\nlink = "ethernet"\nrdma = "mrc"\nplanes = 2\nt0 = 2\nt1 = 2\n'
    )
    try:
        up = subprocess.run([*FAIRLEAD, "lab", "up", "-f", str(file)], capture_output=True, text=True, timeout=120)
        assert up.returncode == 0, up.stderr
        words = ["fabric", "perf", "n0", "n1", "-f", str(file), "--runs", str(tmp_path), "--json", "--both", "--trim"]
        done = subprocess.run([*FAIRLEAD, *words, "--duration", "2"], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        assert answer["intact"]
        assert all(row["messages"] for row in answer["sums"].values())
    finally:
        down(name)
