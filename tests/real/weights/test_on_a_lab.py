"""A spread over four lab hosts on shaped links: bytes at the origin counted, a node and the control side killed, a new
version of a model with a manifest.
"""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.injector import FAIRLEAD, World
from support.origins import Origin
from support.spreads import Run, digest_of, digest_on, killed, programs_on, serving_hosts, when_given
from support.tensors import write_model
from support.trials import world

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.requires("root", "netns", "srv6", "tbf", "nft", "slurm", "obstore"),
]
MIB = 1 << 20
SIZE = 48 * MIB + 4321


@pytest.fixture(scope="module")
def lab() -> Iterator[World]:
    """Four hosts on two planes of 125 Mbit/s."""
    with world(hosts=4, gpus=1, planes=2, rate_mbps=125) as made:
        made.file.write_text(made.file.read_text().replace("gpus = 1\n", f'gpus = 1\npython = "{sys.executable}"\n'))
        yield made


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("served")
    (made / "model.safetensors").write_bytes(random.Random(9).randbytes(SIZE))
    return made


@pytest.fixture
def origin(lab, model) -> Iterator[Origin]:
    """Every host and this machine know it by one address; it gives 30 MB/s at most."""
    with serving_hosts(lab, model, rate=30e6) as made:
        yield made


def lies(lab, host: str, dest: str) -> None:
    """The disk gives back other bytes of the model: the file's size and time are those of the record."""
    lab.sh(host, f"cd {dest}; touch -r model.safetensors t; "
                 "printf '\\377\\000\\377' | dd of=model.safetensors bs=1 seek=30000000 conv=notrunc 2>/dev/null; "
                 "touch -r t model.safetensors; rm t")  # fmt: skip


def test_every_host_has_it_and_each_byte_left_the_origin_once(lab, origin, model):
    status, result = Run(lab, origin, "/tmp/one").end()
    assert status == 0, result["findings"]
    assert {digest_on(lab, host, "/tmp/one") for host in lab.nodes} == {digest_of(model)}
    assert origin.given == result["origin_bytes"] == SIZE
    assert result["doubles"] == 0
    assert result["digest"] == "blake3"
    assert result["max_rss_bytes"] < 512 * MIB
    status, again = Run(lab, origin, "/tmp/one").end()
    assert (status, again["origin_bytes"], again["root"]) == (0, 0, result["root"])
    assert origin.given == SIZE
    # one that has nothing takes it from the others
    lab.sh("n2", "rm -rf /tmp/one")
    status, third = Run(lab, origin, "/tmp/one").end()
    assert (status, third["origin_bytes"], third["present"]["some"]) == (0, 0, third["chunks"])
    assert digest_on(lab, "n2", "/tmp/one") == digest_of(model)


def test_a_host_that_has_it_gives_it_to_the_others_and_no_origin_is_asked(lab, origin, model):
    dest = "/tmp/held"
    assert Run(lab, origin, dest, "-w", "n1").end()[0] == 0
    origin.fault = lambda request: request.answer(404) or True

    def from_n1(*words: str) -> tuple[int, dict]:
        argv = [*FAIRLEAD, "weights", "spread", f"node://n1{dest}", dest, "-f", str(lab.file), "--json", *words]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120, cwd=lab.file.parent)
        return done.returncode, json.loads(done.stdout)

    status, result = from_n1()
    assert status == 0, result
    assert (result["complete"], result["origin_bytes"]) == ("n[0-3]", 0)
    assert origin.given == SIZE, "by the first run"
    assert {digest_on(lab, host, dest) for host in lab.nodes} == {digest_of(model)}
    status, again = from_n1()
    assert (status, again["peer_bytes"]) == (0, 0)
    for words, why in ((("-w", "n[2-3]"), "takes part itself"), (("--compare", "none"), "must count as there")):
        status, refused = from_n1(*words)
        assert (status, why in refused["error"]["message"]) == (2, True), refused
    lies(lab, "n1", dest)
    for host in ("n0", "n2", "n3"):
        lab.sh(host, f"rm -rf {dest}")
    status, result = from_n1()
    assert (status, result["complete"]) == (3, "")
    assert ("weights/rotten", "n1") in {(f["code"], f["subject"].get("nodes", [""])[0]) for f in result["findings"]}
    assert {lab.sh(host, f"ls {dest}; rm -rf {dest}").strip() for host in ("n0", "n2", "n3")} == {""}, "nobody took it"
    lab.sh("n1", f"rm -rf {dest}")


def test_a_disk_that_gives_back_other_bytes_is_named_and_the_others_have_them_from_the_origin(lab, origin, model):
    dest, others = "/tmp/rotten", ("n0", "n2", "n3")
    assert Run(lab, origin, dest, "-w", "n1").end()[0] == 0
    lies(lab, "n1", dest)
    before = origin.given
    status, result = Run(lab, origin, dest).end()
    assert (status, result["complete"]) == (3, "n[0,2-3]"), result["findings"]
    (bad,) = [f for f in result["findings"] if f["verdict"] == "fail"]
    assert (bad["code"], bad["subject"]["nodes"]) == ("weights/rotten", ["n1"])
    assert "model.safetensors" in bad["message"]
    assert {digest_on(lab, host, dest) for host in others} == {digest_of(model)}, "the chunk was passed on by nobody"
    assert 0 < origin.given - before <= SIZE, "what the others had not taken from it yet"
    verify = [*FAIRLEAD, "weights", "verify", dest, "-f", str(lab.file), "--json"]
    found = json.loads(subprocess.run(verify, capture_output=True, text=True, cwd=lab.file.parent).stdout)
    assert {f["subject"]["nodes"][0] for f in found["findings"] if f["code"] == "weights/damaged"} == {"n1"}
    before = origin.given
    assert Run(lab, origin, dest).end()[0] == 0
    assert (origin.given, digest_on(lab, "n1", dest)) == (before, digest_of(model)), "the others mend it"
    for host in lab.nodes:
        lab.sh(host, f"rm -rf {dest}")


def test_a_host_that_is_killed_is_named_and_the_others_finish(lab, origin, model):
    run = Run(lab, origin, "/tmp/two")
    when_given(origin, SIZE // 2, lambda: killed(lab, "n1")).join()
    status, result = run.end()
    assert status == 3
    assert (result["complete"], result["bad"]) == ("n0,n[2-3]", "n1") or result["bad"] == "n1"
    (lost,) = [f for f in result["findings"] if f["verdict"] == "fail"]
    assert (lost["code"], lost["subject"]["nodes"]) == ("weights/node-lost", ["n1"])
    assert {digest_on(lab, host, "/tmp/two") for host in ("n0", "n2", "n3")} == {digest_of(model)}
    assert origin.given <= 1.35 * SIZE, "at most what only the dead one had, a quarter, and what was under way"
    assert lab.sh("n1", "ls /tmp/two").strip() == "", "nothing half is published"
    before = origin.given
    status, result = Run(lab, origin, "/tmp/two").end()
    assert status == 0
    assert origin.given == before, "it goes on from what it has and takes the rest from the others"
    assert digest_on(lab, "n1", "/tmp/two") == digest_of(model)


def test_the_control_side_is_killed_and_a_second_run_goes_on(lab, origin, model):
    run = Run(lab, origin, "/tmp/three")
    when_given(origin, SIZE // 2, run.child.kill).join()
    run.child.communicate()
    deadline = time.monotonic() + 30
    while any(programs_on(lab, host) for host in lab.nodes) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(programs_on(lab, host) for host in lab.nodes), "nodes end with it"
    assert {lab.sh(host, "ls /tmp/three").strip() for host in lab.nodes} == {""}
    status, result = Run(lab, origin, "/tmp/three").end()
    assert status == 0, result["findings"]
    assert {digest_on(lab, host, "/tmp/three") for host in lab.nodes} == {digest_of(model)}
    assert origin.given <= 1.35 * SIZE


def test_of_a_new_version_each_host_gets_what_changed_and_a_late_one_all_from_the_others(lab):
    pytest.importorskip("safetensors.numpy", reason="missing: pip install 'fairlead[train]'")
    count, dest = 200, "/tmp/four"
    changed = random.Random(3).sample(range(count), count // 20)
    with tempfile.TemporaryDirectory(dir=sys.prefix) as place:  # a host has a /tmp of its own, and our Python
        source = Path(place) / "model"

        def spread(*words: str) -> dict:
            argv = [*FAIRLEAD, "weights", *words, "--json"]
            done = subprocess.run(argv, capture_output=True, text=True, timeout=120, cwd=place)
            result = json.loads(done.stdout)
            assert done.returncode == 0, result["findings"]
            return result

        def digests(host: str) -> list[str]:
            return lab.sh(host, f"cd {dest}; sha256sum *.safetensors").splitlines()

        words = ("spread", str(source), dest, "-f", str(lab.file))
        write_model(source, count, step="9")
        spread("manifest", str(source))
        assert spread(*words)["origin_share"] == 1.0
        write_model(source, count, changed, step="10", note="a longer header")
        spread("manifest", str(source))
        result = spread(*words)
        assert result["origin_share"] <= 0.06, "a twentieth of the tensors"
        assert result["peer_bytes"] <= 3 * 0.06 * result["bytes"]
        files = [p.name for p in sorted(source.glob("*.safetensors"))]
        wanted = [f"{hashlib.sha256((source / n).read_bytes()).hexdigest()}  {n}" for n in files]
        assert all(digests(host) == wanted for host in lab.nodes)
        again = spread(*words)
        assert (again["origin_bytes"], again["peer_bytes"], again["root"]) == (0, 0, result["root"])
        lab.sh("n2", f"rm -rf {dest}")
        late = spread(*words)
        assert (late["origin_bytes"], late["peer_bytes"]) == (0, late["bytes"])
        assert digests("n2") == wanted
