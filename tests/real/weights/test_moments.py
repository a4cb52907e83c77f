"""Kills at chosen moments: the one host that downloads is stopped while it gives files their names, while it writes its
journal, while it hashes what is there; the control process while a host still looks; the origin for longer than anybody
waits. Nothing half ever has a name, the others finish, and the next run has everything.

The host's Python stands still at a call, as a slow disk would have it, until it is killed; nothing in fairlead helps.
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
from support.spreads import Run, digest_of, digest_on, killed, programs_on, seen, when_given
from support.trials import world

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.requires("root", "netns", "srv6", "tbf", "nft", "slurm", "obstore"),
]
MIB = 1 << 20
ODD = "n0"
"""The host that stands still; of --download-ranks 1 it is the one that downloads."""
PLACE = "/tmp/odd"
STANDS_STILL = """
import os, time
def at(name, is_it=lambda *_: True, after=0):
    def before(call):
        def made(*args, **more):
            if is_it(*args) and os.path.exists("{place}/" + name):
                counts[name] = counts.get(name, 0) + 1
                if counts[name] > after:
                    open("{place}/is-at-" + name, "w").close()
                    time.sleep(600)
            return call(*args, **more)
        return made
    return before
counts = {{}}
os.rename = at("name", lambda old, new: not str(new).startswith("record"), after=1)(os.rename)
os.fdatasync = at("sync")(os.fdatasync)
os.statvfs = at("look")(os.statvfs)
import blake3
blake3.blake3 = at("hash", lambda *a: len(a[0]) > 1 << 16, after=5)(blake3.blake3)
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[World]:
    """Four hosts on two planes of 100 Mbit/s; the Python of one stands still where it is told to."""
    with world(hosts=4, gpus=1, planes=2, rate_mbps=100) as made:
        text = made.file.read_text().replace('nodes = "n[0-3]"\ngpus = 1\n', "")
        pools = "".join(
            f'[[pool]]\nname = "{name}"\nsize = "lab"\nnodes = "{nodes}"\ngpus = 1\npython = "{python}"\n'
            for name, nodes, python in (("odd", ODD, f"{PLACE}/python3"), ("lab", "n[1-3]", sys.executable))
        )
        text = text.replace('[[pool]]\nname = "lab"\nsize = "lab"\n', pools)
        made.file.write_text(text + "[weights]\nsilent_s = 10\ngive_up_s = 6\n")
        wrapper = f'#!/bin/sh\nPYTHONPATH={PLACE} exec {sys.executable} "$@"\n'
        for path, said in (("sitecustomize.py", STANDS_STILL.format(place=PLACE)), ("python3", wrapper)):
            made.sh(ODD, f"mkdir -p {PLACE}; cat > {PLACE}/{path} <<'END'\n{said}END\nchmod 755 {PLACE}/{path}")
        yield made


@pytest.fixture(scope="module")
def source() -> Iterator[Path]:
    """A folder that all hosts see: a host has a /tmp of its own, and our Python."""
    rng = random.Random(41)
    with tempfile.TemporaryDirectory(dir=sys.prefix) as place:
        for name, size in (("a.bin", 9 * MIB + 7), ("b.bin", 5 * MIB), ("c.json", 700)):
            (Path(place) / name).write_bytes(rng.randbytes(size))
        yield Path(place)


@pytest.fixture(autouse=True)
def _clean(lab) -> Iterator[None]:
    yield
    lab.sh(ODD, f"cd {PLACE}; rm -f name sync look hash is-at-*")
    for host in lab.nodes:
        lab.sh(host, "rm -rf /tmp/w-*")


def begun(lab: World, source: Path, dest: str, *more: str) -> subprocess.Popen:
    argv = [*FAIRLEAD, "weights", "spread", str(source), dest, "-f", str(lab.file), "--json", *more]
    runs = ["--runs", str(lab.file.parent / "r")]
    return subprocess.Popen([*argv, *runs], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(child: subprocess.Popen) -> tuple[int, dict]:
    out, err = child.communicate(timeout=100)
    assert out, err
    return child.returncode, json.loads(out)


def until_still(lab: World, moment: str) -> None:
    """Wait until the host stands at that call."""
    deadline = time.monotonic() + 60
    while f"is-at-{moment}" not in lab.sh(ODD, f"ls {PLACE}"):
        assert time.monotonic() < deadline, f"it never came to {moment}"
        time.sleep(0.1)


def names(lab: World, host: str, dest: str) -> dict[str, str]:
    """File -> digest, of all that has a name."""
    said = lab.sh(host, f"cd {dest} 2>/dev/null && sha256sum -- [abc].* 2>/dev/null || true")
    return {line.split()[1]: line.split()[0] for line in said.splitlines()}


def digests(source: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in source.glob("[abc].*")}


def all_ended(lab: World) -> bool:
    deadline = time.monotonic() + 30
    while any(programs_on(lab, host) for host in lab.nodes) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not any(programs_on(lab, host) for host in lab.nodes)


@pytest.mark.parametrize(("moment", "most"), [("name", 1), ("sync", 0)])
def test_the_host_that_downloads_dies_while_it_publishes_or_syncs(lab, source, moment, most):
    dest, good = f"/tmp/w-{moment}", digests(source)
    lab.sh(ODD, f"touch {PLACE}/{moment}")
    child = begun(lab, source, dest, "--download-ranks", "1")
    until_still(lab, moment)
    killed(lab, ODD)
    status, result = ended(child)
    assert (status, result["complete"]) == (3, "n[1-3]"), result["findings"]
    lost = [(f["code"], f["subject"]["nodes"]) for f in result["findings"] if f["verdict"] == "fail"]
    assert lost == [("weights/node-lost", [ODD])]
    assert all(names(lab, host, dest) == good for host in ("n1", "n2", "n3"))
    half = names(lab, ODD, dest)
    assert len(half) == most
    assert half.items() <= good.items(), "what has a name is whole"
    assert all_ended(lab)
    lab.sh(ODD, f"rm {PLACE}/{moment}")
    status, result = ended(begun(lab, source, dest))
    assert (status, result["origin_bytes"]) == (0, 0), "the others have it"
    assert names(lab, ODD, dest) == good


def test_a_host_dies_while_it_hashes_what_is_there(lab, source):
    """A publisher's manifest, and files that somebody put there: each piece is hashed before it counts."""
    dest, good = "/tmp/w-hash", digests(source)
    subprocess.run([*FAIRLEAD, "weights", "manifest", str(source)], check=True, capture_output=True)
    try:
        for host in lab.nodes:
            lab.sh(host, f"mkdir -p {dest}; cp {source}/a.bin {source}/b.bin {dest}/")
        lab.sh(ODD, f"touch {PLACE}/hash")
        child = begun(lab, source, dest)
        until_still(lab, "hash")
        killed(lab, ODD)
        status, result = ended(child)
        assert (status, result["complete"]) == (3, "n[1-3]"), result["findings"]
        assert names(lab, ODD, dest).items() <= good.items(), "what was there is as it was"
        assert all_ended(lab)
        lab.sh(ODD, f"rm {PLACE}/hash")
        status, result = ended(begun(lab, source, dest))
        assert (status, result["origin_bytes"]) == (0, 0)
        assert names(lab, ODD, dest) == good
    finally:
        (source / "fairlead.manifest.json").unlink()


def test_the_control_process_dies_while_a_host_still_looks(lab, source):
    dest = "/tmp/w-look"
    lab.sh(ODD, f"touch {PLACE}/look")
    child = begun(lab, source, dest)
    until_still(lab, "look")
    child.kill()
    child.communicate()
    killed(lab, ODD)  # it stands still, and hears nothing
    assert all_ended(lab), "the others end with the control process"
    assert [names(lab, host, dest) for host in lab.nodes] == [{}] * 4
    lab.sh(ODD, f"rm {PLACE}/look")
    status, result = ended(begun(lab, source, dest))
    assert (status, result["origin_share"]) == (0, 1.0)
    assert all(names(lab, host, dest) == digests(source) for host in lab.nodes)


def test_an_origin_that_is_gone_for_longer_than_anybody_waits_and_comes_back(lab, tmp_path):
    (tmp_path / "model.safetensors").write_bytes(random.Random(43).randbytes(24 * MIB + 9))
    size, dest, first = 24 * MIB + 9, "/tmp/w-gone", Origin(tmp_path, rate=6e6)
    with first:
        seen(lab, first)
        run = Run(lab, first, dest)
        when_given(first, size // 2, first.__exit__).join()  # every port closes: connections are refused
        status, result = run.end()
    assert (status, list(result["missing"])) == (3, ["model.safetensors"]), result["findings"]
    assert {lab.sh(host, f"ls {dest}").strip() for host in lab.nodes} == {""}, "nothing half"
    again = Origin(tmp_path)
    again.port = first.port
    with again:
        seen(lab, again)
        status, result = Run(lab, again, dest).end()
    assert status == 0, result["findings"]
    assert first.given + again.given <= 1.1 * size, "what came before it went is not fetched again"
    assert {digest_on(lab, host, dest) for host in lab.nodes} == {digest_of(tmp_path)}
