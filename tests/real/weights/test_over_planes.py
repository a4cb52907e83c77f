"""Spreads by MRC over a lab of four hosts on two planes: also where a plane is cut in the middle, where a host dies,
where one lacks the package, and where two have no plane in common.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.injector import World
from support.origins import Origin
from support.spreads import Run, digest_of, digest_on, faulted, killed, serving_hosts, when_given
from support.trials import world

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.requires("root", "netns", "srv6", "tbf", "nft", "slurm", "obstore"),
]
MIB = 1 << 20
PLANES = ("eth1", "eth2")
SIZE = 32 * MIB + 4321


@pytest.fixture(scope="module")
def lab() -> Iterator[World]:
    """Four hosts on two planes of 60 Mbit/s: two cores are not the bound."""
    pytest.importorskip("numba", reason="missing: pip install 'fairlead[fabric]'")
    with world(hosts=4, gpus=1, planes=2, rate_mbps=60) as made:
        made.file.write_text(made.file.read_text().replace("gpus = 1\n", f'gpus = 1\npython = "{sys.executable}"\n'))
        yield made


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("served")
    (made / "model.safetensors").write_bytes(random.Random(9).randbytes(SIZE))
    return made


@pytest.fixture
def origin(lab, model) -> Iterator[Origin]:
    with serving_hosts(lab, model, rate=15e6) as made:
        yield made


@pytest.mark.parametrize("transport", ["mrc", "tcp"])
def test_every_host_has_it_and_the_planes_carried_it(lab, origin, model, transport):
    before = {host: carried(lab, host) for host in lab.nodes}
    status, result = Run(lab, origin, f"/tmp/{transport}", "--transport", transport).end()
    assert status == 0, result
    assert {digest_on(lab, host, f"/tmp/{transport}") for host in lab.nodes} == {digest_of(model)}
    assert origin.given == result["origin_bytes"] == SIZE
    assert result["doubles"] == 0
    assert result["max_rss_bytes"] < 512 * MIB
    for host in lab.nodes:
        for plane, num in carried(lab, host).items():
            assert num - before[host][plane] > SIZE * 5 // 16, "of three quarters, each plane of every host took a half"


def test_a_plane_is_cut_in_the_middle(lab, origin, model):
    run = Run(lab, origin, "/tmp/two", "--transport", "mrc")
    when_given(origin, SIZE // 2, lambda: faulted(lab, "silent-drop", "p1/*")).join()
    try:
        status, result = run.end()
    finally:
        faulted(lab, "--heal", "all")
    assert status == 0, result
    assert {digest_on(lab, host, "/tmp/two") for host in lab.nodes} == {digest_of(model)}
    assert origin.given == SIZE


def test_a_host_that_is_killed_is_named_and_the_others_finish(lab, origin, model):
    run = Run(lab, origin, "/tmp/three", "--transport", "mrc")
    when_given(origin, SIZE // 2, lambda: killed(lab, "n1")).join()
    status, result = run.end()
    assert status == 3
    (lost,) = [f for f in result["findings"] if f["verdict"] == "fail"]
    assert (lost["code"], lost["subject"]["nodes"]) == ("weights/node-lost", ["n1"])
    assert {digest_on(lab, host, "/tmp/three") for host in ("n0", "n2", "n3")} == {digest_of(model)}
    assert lab.sh("n1", "ls /tmp/three").strip() == "", "nothing half is published"


def test_a_host_without_the_package_is_left_out_by_name(lab, origin, model):
    bare = lab.file.with_name("bare.toml")
    bare.write_text(
        lab.file.read_text().replace('nodes = "n[0-3]"', 'nodes = "n[0-2]"')
        + '[[pool]]\nname = "bare"\nsize = "lab"\nnodes = "n3"\ngpus = 1\npython = "/usr/bin/python3"\n'
    )
    status, result = Run(lab, origin, "/tmp/four", "--transport", "mrc", file=bare).end()
    assert status == 3
    (out,) = [f for f in result["findings"] if f["verdict"] == "fail"]
    assert (out["code"], out["subject"]["nodes"]) == ("weights/no-transport", ["n3"])
    assert "has no MRC transport" in out["message"]
    assert {digest_on(lab, host, "/tmp/four") for host in ("n0", "n1", "n2")} == {digest_of(model)}


def test_two_without_a_plane_in_common_are_said_before_anything_is_done(lab, origin):
    place = lab.sh("n2", "cat /etc/fairlead/place.json")
    lab.sh("n2", 'sed -i \'s/"t1": 2/"t1": 3/\' /etc/fairlead/place.json')
    try:
        status, result = Run(lab, origin, "/tmp/five", "--transport", "mrc").end()
    finally:
        lab.sh("n2", f"cat > /etc/fairlead/place.json <<'END'\n{place}\nEND")
    assert status != 0
    assert result["error"]["code"] == "fabric/no-common-plane"
    assert "n2" in result["error"]["message"]
    assert not origin.given


def carried(lab: World, host: str) -> dict[str, int]:
    """Bytes that a host's ports of each plane took in."""
    lines = [line.replace(":", " ").split() for line in lab.sh(host, "cat /proc/net/dev").splitlines()]
    return {words[0]: int(words[1]) for words in lines if words[0] in PLANES}
