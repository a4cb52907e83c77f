"""`fairlead weights pull` by the command, from a server that counts its bytes and misbehaves, onto real file
systems."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.injector import FAIRLEAD
from support.origins import cut_short, refused, serving, throttled

pytestmark = pytest.mark.real
MIB = 1 << 20


@pytest.fixture
def run(tmp_path):
    def call(*words: str, env: dict[str, str] | None = None) -> tuple[int, dict]:
        argv = [*FAIRLEAD, "weights", *words, "--runs", str(tmp_path / "runs"), "--json"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120, env={**os.environ, **(env or {})})
        assert "traceback" not in done.stderr, done.stderr
        return done.returncode, json.loads(done.stdout)

    return call


@pytest.fixture
def model(tmp_path) -> Path:
    """One large file, as a server has it."""
    made = tmp_path / "served"
    made.mkdir()
    (made / "model.safetensors").write_bytes(random.Random(4).randbytes(20 * MIB + 77))
    return made


@pytest.fixture
def folder(tmp_path) -> Path:
    """Files of every sort of size and name."""
    made, rng = tmp_path / "source", random.Random(5)
    sizes = {
        "a.safetensors": 9 * MIB + 5,
        "config.json": 700,
        "empty": 0,
        "deep/er/x.bin": MIB,
        "exact.bin": 256 << 10,
        "sp ace #?%25.txt": 3,
        "größe.txt": 11,
        **{f"many/{i:03d}": 1 + 37 * i for i in range(300)},
    }
    for name, size in sizes.items():
        path = made / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(rng.randbytes(size))
    return made


def files_of(place: Path) -> dict[str, str]:
    """What stands there, our own folder left out."""
    found = (p for p in place.rglob("*") if p.is_file() and ".fairlead" not in p.parts)
    return {p.relative_to(place).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in found}


def codes(result: dict) -> set[str]:
    return {f["code"] for f in result["findings"]}


def test_a_folder_arrives_whole_and_a_second_time_nothing_is_fetched(run, folder, tmp_path):
    dest = tmp_path / "dest"
    status, result = run("pull", str(folder), str(dest))
    assert status == 0, result
    assert files_of(dest) == files_of(folder)
    assert result["origin_bytes"] == result["bytes"] == sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
    assert not list((dest / ".fairlead").glob("stage-*")), "nothing under way is left"
    status, again = run("pull", str(folder), str(dest))
    assert (status, again["origin_bytes"], again["root"]) == (0, 0, result["root"])
    (folder / "config.json").write_text("{}")
    (dest / "deep/er/x.bin").unlink()
    status, third = run("pull", str(folder), str(dest))
    assert status == 0
    assert files_of(dest) == files_of(folder)
    assert MIB <= third["origin_bytes"] < 2 * MIB, "one file, and the chunk of small files that one of changed"


@pytest.mark.parametrize("fault", [None, throttled(3), throttled(4, "1"), cut_short(2)], ids=["", "503", "wait", "cut"])
def test_by_http_each_byte_leaves_the_server_once(run, model, tmp_path, fault):
    with serving(model) as origin:
        origin.fault = fault
        status, result = run("pull", f"{origin.url}/model.safetensors", str(tmp_path / "dest"))
    assert status == 0, result
    assert files_of(tmp_path / "dest") == files_of(model)
    assert origin.given == result["bytes"]
    assert bool(result["retries"]) == (fault is not None)


def test_a_server_without_ranges_gives_a_file_of_one_request(run, tmp_path):
    (tmp_path / "served").mkdir()
    (tmp_path / "served/x.bin").write_bytes(bytes(range(256)) * 1000)
    with serving(tmp_path / "served") as origin:
        origin.ranges = False
        status, result = run("pull", f"{origin.url}/x.bin", str(tmp_path / "dest"))
    assert status == 0, result
    assert files_of(tmp_path / "dest") == files_of(tmp_path / "served")


@pytest.mark.parametrize("status", [401, 403])
def test_wrong_credentials_are_said_at_once(run, model, tmp_path, status):
    began = time.monotonic()
    with serving(model) as origin:
        origin.fault = refused(status)
        code, result = run("pull", f"{origin.url}/model.safetensors", str(tmp_path / "dest"))
    assert (code, result["error"]["code"]) == (4, "weights/denied")
    assert len(origin.requests) == 1, "it is not tried again"
    assert time.monotonic() - began < 5
    assert not (tmp_path / "dest").exists()


def test_an_object_that_changes_under_way_is_not_published(run, model, tmp_path):
    path, changed = model / "model.safetensors", []

    def change(request) -> bool:
        if request.command == "GET" and len(request.origin.requests) == 4 and not changed:
            changed.append(path.write_bytes(random.Random(6).randbytes(path.stat().st_size)))
        return False

    with serving(model) as origin:
        origin.fault = change
        status, result = run("pull", f"{origin.url}/model.safetensors", str(tmp_path / "dest"))
        assert changed
        assert (status, codes(result)) == (3, {"weights/changed"})
        assert files_of(tmp_path / "dest") == {}
        origin.fault = None
        status, result = run("pull", f"{origin.url}/model.safetensors", str(tmp_path / "dest"))
    assert status == 0
    assert files_of(tmp_path / "dest") == files_of(model)


def test_an_object_that_is_gone_is_named_and_the_rest_is_kept(run, model, tmp_path):
    with serving(model) as origin:
        origin.fault = lambda request: (
            request.command == "GET" and len(request.origin.requests) > 3 and refused(404)(request)
        )
        status, result = run("pull", f"{origin.url}/model.safetensors", str(tmp_path / "dest"))
        assert (status, codes(result)) == (3, {"weights/missing"})
        assert "model.safetensors" in result["missing"]
        assert files_of(tmp_path / "dest") == {}
        before, origin.fault = origin.given, None
        status, result = run("pull", f"{origin.url}/model.safetensors", str(tmp_path / "dest"))
    assert status == 0
    assert origin.given - before <= result["bytes"] - before + 4 * result["chunk_bytes"], (
        "what came is not fetched again"
    )


def test_a_run_that_is_killed_goes_on_where_it_was(run, model, tmp_path):
    dest = tmp_path / "dest"
    with serving(model, rate=8e6) as origin:
        words = [
            *FAIRLEAD,
            "weights",
            "pull",
            f"{origin.url}/model.safetensors",
            str(dest),
            "--runs",
            str(tmp_path / "r"),
        ]
        child = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while origin.given < 10 * MIB and time.monotonic() < deadline:
            time.sleep(0.02)
        child.send_signal(signal.SIGKILL)
        child.wait()
        assert files_of(dest) == {}, "nothing half is published"
        time.sleep(1.5)  # the node's program ends with its caller
        before, origin.rate = origin.given, 0
        status, result = run("pull", f"{origin.url}/model.safetensors", str(dest))
        assert status == 0, result
    assert files_of(dest) == files_of(model)
    assert origin.given < 1.4 * result["bytes"], (before, origin.given)
    assert result["origin_bytes"] <= 0.75 * result["bytes"]


def test_damage_on_disk_is_found_named_and_mended(run, folder, tmp_path):
    dest = tmp_path / "dest"
    run("pull", str(folder), str(dest))
    spec = tmp_path / "here.toml"
    spec.write_text(
        'schema = 1\n[[pool]]\nname = "here"\nnodes = "localhost"\nsize = "other"\n'
        f'python = "{sys.executable}"\n[fabric]\nlink = "ethernet"\nrdma = "none"\n[access]\nvia = "local"\n'
    )
    assert run("verify", str(dest), "-f", str(spec))[0] == 0
    path = dest / "a.safetensors"
    times, data = path.stat().st_mtime_ns, bytearray(path.read_bytes())
    data[5 * MIB] ^= 4  # one bit, and the time of the file as it was
    path.write_bytes(data)
    os.utime(path, ns=(times, times))
    status, result = run("verify", str(dest), "-f", str(spec))
    assert (status, codes(result)) == (3, {"weights/damaged"})
    assert "a.safetensors" in str(result["findings"])
    status, result = run("spread", str(folder), str(dest), "-f", str(spec))
    assert status == 0
    assert result["origin_bytes"] == path.stat().st_size, "that file, and nothing else"
    assert files_of(dest) == files_of(folder)
    assert run("verify", str(dest), "-f", str(spec))[0] == 0
    status, result = run("verify", str(tmp_path / "elsewhere"), "-f", str(spec))
    assert (status, codes(result)) == (3, {"weights/no-record"})
    assert not (tmp_path / "elsewhere").exists()


def test_nothing_outside_of_the_destination_is_touched(run, folder, tmp_path):
    dest, outside = tmp_path / "dest", tmp_path / "outside"
    dest.mkdir()
    outside.mkdir()
    (dest / "many").symlink_to(outside)
    (dest / "config.json").symlink_to(outside / "config.json")
    status, result = run("pull", str(folder), str(dest))
    assert (status, codes(result)) == (3, {"weights/in-the-way"})
    assert list(outside.iterdir()) == []
    (dest / "many").unlink()
    status, result = run("pull", str(folder), str(dest))
    assert status == 0, result
    assert list(outside.iterdir()) == [], "a link in the place of a file is replaced, not followed"
    assert files_of(dest) == files_of(folder)


def test_a_destination_that_cannot_be(run, folder, tmp_path):
    (tmp_path / "file").write_text("mine")
    status, result = run("pull", str(folder), str(tmp_path / "file"))
    assert (status, codes(result)) == (3, {"weights/not-a-folder"})
    assert (tmp_path / "file").read_text() == "mine"
    (tmp_path / "dest").mkdir()
    (tmp_path / "dest" / ".fairlead").symlink_to(tmp_path)
    status, result = run("pull", str(folder), str(tmp_path / "dest"))
    assert status == 3
    assert sorted(p.name for p in (tmp_path / "dest").iterdir()) == [".fairlead"]


@contextlib.contextmanager
def mounted(place: Path, options: str):
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.requires("root")
def test_a_disk_without_room_is_known_before_the_first_byte(run, model, tmp_path):
    with mounted(tmp_path / "small", "size=12m") as place, serving(model) as origin:
        status, result = run("pull", f"{origin.url}/model.safetensors", str(place / "dest"))
        assert (status, codes(result)) == (3, {"weights/disk-full"})
        assert origin.given == 0


@pytest.mark.requires("root")
def test_a_disk_that_is_read_only(run, model, tmp_path):
    with mounted(tmp_path / "ro", "ro") as place, serving(model) as origin:
        status, result = run("pull", f"{origin.url}/model.safetensors", str(place / "dest"))
        assert (status, codes(result)) == (3, {"weights/read-only"})
        assert origin.given == 0


def test_first_files_are_published_before_the_others_are_there(run, tmp_path):
    source, dest = tmp_path / "source", tmp_path / "dest"
    source.mkdir()
    (source / "index.json").write_text("{}")
    (source / "z.bin").write_bytes(bytes(24 * MIB))
    words = [*FAIRLEAD, "weights", "pull", str(source), str(dest), "--ready-when", "*.json", "--max-bandwidth", "40M"]
    child = subprocess.Popen(
        [*words, "--runs", str(tmp_path / "r")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 30
    while not (dest / "index.json").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert (dest / "index.json").exists()
    assert not (dest / "z.bin").exists()
    assert child.poll() is None
    child.terminate()
    child.wait(10)


def test_lists_of_files(run, folder, tmp_path):
    dest, listed = tmp_path / "dest", tmp_path / "list.tsv"
    assert run("pull", str(folder), str(dest), "--include", "many/*")[0] == 0
    spec = tmp_path / "here.toml"
    spec.write_text(
        'schema = 1\n[[pool]]\nname = "here"\nnodes = "localhost"\nsize = "other"\n'
        f'python = "{sys.executable}"\n[fabric]\nlink = "ethernet"\nrdma = "none"\n[access]\nvia = "local"\n'
    )
    status, result = run("spread", str(folder), str(dest), "-f", str(spec), "--save-filelist", str(listed), "--dry-run")
    assert (status, result["origin_bytes"]) == (0, 0)
    assert len(listed.read_text().splitlines()) == result["files"] == 307
    status, result = run("plan", str(folder), str(tmp_path / "fresh"), "-f", str(spec))
    assert (status, result["present"]["none"]) == (0, result["chunks"])
    assert not (tmp_path / "fresh").exists(), "a plan leaves nothing"
    other = tmp_path / "other"
    subprocess.run(["cp", "-r", str(folder), str(other)], check=True)  # by somebody else: we have no record of it
    status, result = run(
        "spread", str(folder), str(other), "-f", str(spec), "--compare", "filelist", "--filelist", str(listed)
    )
    assert (status, result["origin_bytes"]) == (0, 0)
    status, result = run("pull", str(folder), str(other), "--compare", "size")
    assert (status, result["origin_bytes"]) == (0, 0)
    status, result = run("pull", str(folder), str(other))
    assert (status, result["origin_bytes"]) == (0, result["bytes"]), "without our own record, size is no proof"
    status, result = run("pull", str(folder), str(other))
    assert (status, result["origin_bytes"]) == (0, 0)
    one = next(path for path in other.rglob("*") if path.is_file() and path.stat().st_size > 1000)
    was, stat = one.read_bytes(), one.stat()
    with one.open("r+b") as file:  # a disk that lies: size and time are those of the record
        file.write(bytes(b ^ 255 for b in was[:1000]))
    os.utime(one, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    status, result = run("pull", str(folder), str(other), "--compare", "none")
    assert (status, result["origin_bytes"]) == (0, result["bytes"])
    assert one.read_bytes() == was
