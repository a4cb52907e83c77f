"""A bundle through tools of others: skopeo copies it into a real registry and back, umoci unpacks it, and an image that
umoci made is what it stands on.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from fairlead.errors import FairleadError
from fairlead.serve.bundle import make, planned
from fairlead.serve.image import read_base
from fairlead.serve.model import look
from support.ports import Ports
from support.served import model

pytestmark = pytest.mark.real
LINUX = "linux/amd64"


def tool(*words):
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(the model, its bundle as an image, what the bundle says)."""
    place = tmp_path_factory.mktemp("made")
    source = model(place / "Tiny-1B", shards=3)
    plan = planned(look(source), source, place / "b", form="oci", platform=LINUX)
    return source, place / "b", make(plan)


def base_image(place, root=None, *, into="/opt/app", command="/opt/app/server"):
    """An image of umoci's with one file, a command and a variable: gzip layers, as images have them."""
    tool("umoci", "init", "--layout", place)
    tool("umoci", "new", "--image", f"{place}:base")
    if root is None:
        root = place.with_name("root")
        root.mkdir()
        (root / "server").write_text("#!/bin/sh\n")
    tool("umoci", "insert", "--rootless", "--image", f"{place}:base", root, into)
    tool("umoci", "config", "--image", f"{place}:base", "--config.cmd", command, "--config.env", "A=b")
    tool("umoci", "config", "--image", f"{place}:base", "--architecture", "amd64", "--os", "linux")
    tool("umoci", "gc", "--layout", place)
    return place


@pytest.mark.requires("umoci")
def test_umoci_unpacks_what_was_put_in(made, tmp_path):
    source, bundle, _ = made
    tool("umoci", "unpack", "--rootless", "--image", f"{bundle}:latest", tmp_path / "out")
    there = tmp_path / "out" / "rootfs" / "models" / "tiny-1b"
    names = {p.relative_to(source) for p in source.rglob("*") if p.is_file()}
    assert {p.relative_to(there) for p in there.rglob("*") if p.is_file()} == names
    assert all((there / name).read_bytes() == (source / name).read_bytes() for name in names)


@contextlib.contextmanager
def registry_in(place):
    """(address of a real registry, its store)."""
    ports = Ports()
    store, config = place / "store", place / "registry.yml"
    address = f"127.0.0.1:{ports.first}"
    config.write_text(
        f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {store}}}}}\n"
        f"http: {{addr: '{address}'}}\nlog: {{level: error}}\n"
    )
    words = ["docker-registry", "serve", config]
    with subprocess.Popen(words, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as run:
        try:
            _until_up(f"http://{address}/v2/")
            yield address, store
        finally:
            run.terminate()
            ports.close()


@pytest.mark.requires("skopeo", "docker-registry")
def test_a_registry_takes_it_holds_each_shard_once_and_gives_it_back(made, tmp_path):
    source, bundle, said = made
    with registry_in(tmp_path) as (registry, store):
        push = ["skopeo", "copy", "--dest-tls-verify=false", "--preserve-digests"]
        tool(*push, f"oci:{bundle}:latest", f"docker://{registry}/models/tiny:1")
        assert _digest(registry, "tiny", "1") == said.image
        before = _blobs(store)
        copy = tmp_path / "Tiny-1B"
        shutil.copytree(source, copy)
        (copy / "config.json").write_text('{"model_type": "llama", "v": 2}')
        second = make(planned(look(copy), copy, tmp_path / "b2", form="oci", platform=LINUX))
        tool(*push, f"oci:{tmp_path / 'b2'}:latest", f"docker://{registry}/models/tiny:2")
        # of the second: the layer of small files, config, manifest
        assert len(_blobs(store) - before) == 3
        tool("skopeo", "copy", "--src-tls-verify=false", "--dest-oci-accept-uncompressed-layers", f"docker://{registry}/models/tiny@{second.image}",
             f"oci:{tmp_path / 'back'}:latest")  # fmt: skip
        for path in (tmp_path / "back" / "blobs" / "sha256").iterdir():
            assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name
            assert (tmp_path / "b2" / "blobs" / "sha256" / path.name).read_bytes() == path.read_bytes()


@pytest.mark.requires("umoci")
def test_an_image_to_stand_on_keeps_its_files_command_and_variables(made, tmp_path):
    source, _, _ = made
    base = read_base(base_image(tmp_path / "base"), LINUX)
    plan = planned(look(source), source, tmp_path / "b", form="oci", platform=LINUX, base=base)
    said = make(plan, base=base)
    assert said.base == base.digest
    tool("umoci", "unpack", "--rootless", "--image", f"{tmp_path / 'b'}:latest", tmp_path / "out")
    root = tmp_path / "out" / "rootfs"
    assert (root / "opt" / "app" / "server").read_text() == "#!/bin/sh\n"
    assert (root / "models" / "tiny-1b" / "config.json").read_bytes() == (source / "config.json").read_bytes()
    run = json.loads((tmp_path / "out" / "config.json").read_text())["process"]
    assert run["args"] == ["/opt/app/server"]
    assert {"A=b", "HF_HUB_OFFLINE=1"} <= set(run["env"])


@pytest.mark.requires("umoci", "root")
def test_what_is_unpacked_runs_with_its_own_command_and_settings(made, tmp_path):
    """A server of this machine's shell, which reads the model where the image has it."""
    source, _, _ = made
    root = tmp_path / "root"
    for path in ("/bin/sh", *_libraries("/bin/sh")):
        root.joinpath(path[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, root / path[1:])
    (root / "serve").write_text(
        '#!/bin/sh\nread -r line < /models/tiny-1b/config.json || :\necho "offline=$HF_HUB_OFFLINE $line"\n'
    )
    (root / "serve").chmod(0o755)
    base = read_base(base_image(tmp_path / "base", root, into="/", command="/serve"), LINUX)
    make(planned(look(source), source, tmp_path / "b", form="oci", platform=LINUX, base=base), base=base)
    tool("umoci", "unpack", "--image", f"{tmp_path / 'b'}:latest", tmp_path / "out")
    run = json.loads((tmp_path / "out" / "config.json").read_text())["process"]
    env = dict(each.partition("=")[::2] for each in run["env"])
    done = subprocess.run(["chroot", str(tmp_path / "out" / "rootfs"), *run["args"]], env=env, capture_output=True,
                          text=True, timeout=60)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"offline=1 {(source / 'config.json').read_text()}\n"


def _libraries(program):
    """What the loader says that it needs."""
    return [word for line in tool("ldd", program).splitlines() for word in line.split() if word.startswith("/")]


@pytest.mark.requires("skopeo", "docker-registry", "umoci")
def test_an_image_of_a_registry_is_fetched_and_what_was_fetched_goes_with_the_bundle(made, tmp_path, monkeypatch):
    source, _, _ = made
    folder = base_image(tmp_path / "base")
    settings = tmp_path / "home" / ".config" / "containers" / "registries.conf"
    settings.parent.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with registry_in(tmp_path) as (registry, _):
        settings.write_text(f'[[registry]]\nlocation = "{registry}"\ninsecure = true\n')
        tool("skopeo", "copy", "--preserve-digests", f"oci:{folder}:base", f"docker://{registry}/site/server:1")
        by_name = tmp_path / "by-name"
        words = [
            sys.executable,
            "-m",
            "fairlead",
            "serve",
            "bundle",
            source,
            "--unsigned",
            "--json",
            f"--platform={LINUX}",
        ]
        said = json.loads(tool(*words, by_name, "--base", f"docker://{registry}/site/server:1"))
        none = subprocess.run([*map(str, words), str(tmp_path / "none"), "--base", f"docker://{registry}/site/none:1"],
                              capture_output=True, text=True, timeout=60)  # fmt: skip
    by_folder = json.loads(tool(*words, tmp_path / "by-folder", "--base", folder))
    assert said["bundle"]["image"] == by_folder["bundle"]["image"]
    assert said["bundle"]["base"] == by_folder["bundle"]["base"] == read_base(folder, LINUX).digest
    assert {path.name for path in tmp_path.iterdir() if path.name.startswith(".")} == set()
    assert none.returncode == 4
    assert "manifest unknown" in json.loads(none.stdout)["error"]["message"]
    assert not (tmp_path / "none").exists()


@pytest.mark.requires("umoci")
def test_a_base_that_is_damaged_or_of_other_machines_is_refused(made, tmp_path):
    source, _, _ = made
    folder = base_image(tmp_path / "base")
    with pytest.raises(FairleadError) as caught:
        read_base(folder, "linux/arm64")
    assert caught.value.code == "serve/other-architecture"
    base = read_base(folder, LINUX)
    layer = folder / "blobs" / "sha256" / base.layers[0].digest.removeprefix("sha256:")
    raw = bytearray(layer.read_bytes())
    raw[-5] ^= 1
    layer.chmod(0o600)
    layer.write_bytes(raw)
    plan = planned(look(source), source, tmp_path / "b", form="oci", platform=LINUX, base=base)
    with pytest.raises(FairleadError) as caught:
        make(plan, base=base)
    assert caught.value.code == "serve/base"
    layer.unlink()
    with pytest.raises(FairleadError) as caught:
        make(plan, base=base)
    assert caught.value.code == "serve/base"
    assert not (tmp_path / "b").exists()


def _until_up(url):
    until = time.monotonic() + 30
    while time.monotonic() < until:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=2):
            return
        time.sleep(0.05)
    pytest.fail("the registry did not come up")


def _digest(registry, name, tag):
    request = urllib.request.Request(
        f"http://{registry}/v2/models/{name}/manifests/{tag}",
        headers={"Accept": "application/vnd.oci.image.manifest.v1+json"},
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.headers["Docker-Content-Digest"]


def _blobs(store: Path):
    """Blobs as docker-registry's file system driver keeps them: blobs/sha256/AB/DIGEST/data."""
    return {path.parent.name for path in (store / "docker" / "registry" / "v2" / "blobs").rglob("data")}
