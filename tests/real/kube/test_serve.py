"""A model on a closed site: what `serve manifests` writes, asked of a real API server, and run by a real kubelet.

The server in the image is busybox's httpd: what starts, is found healthy, answers and may not write is the Deployment,
not an engine. NFS is dry run alone: these namespaces have no NFS server, and the node no mount.nfs. The network plugin
here (ptp) enforces no NetworkPolicy, so that the policy is accepted is seen, and that it holds is not.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile

import pytest

from support.kube.client import Refused

yaml = pytest.importorskip("yaml", reason="needs PyYAML: extra `plan`")

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.requires("kube")]
REPOSITORY = "registry.site/models/tiny"
SERVER = f"registry.site/vllm@sha256:{'a' * 64}"
_SERVE = (
    "env > /tmp/env; mkdir /tmp/www; echo ok > /tmp/www/health; ln -s /models/tiny /tmp/www/model; "
    "touch /models/tiny/x /x 2> /tmp/www/refused; ln -s /tmp/env /tmp/www/env; "
    "exec busybox httpd -f -p 8000 -h /tmp/www"
)
COMMAND = ("--", "/bin/busybox", "sh", "-c", _SERVE)
NAMESPACE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "models"}}


def fairlead(*words) -> dict:
    argv = [sys.executable, "-m", "fairlead", "serve", *map(str, words[:1]), "--json", *map(str, words[1:])]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "tiny"
    folder.mkdir()
    head = json.dumps({"w": {"dtype": "U8", "shape": [1000], "data_offsets": [0, 1000]}}).encode()
    (folder / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + bytes(1000))
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "tokenizer.json").write_text("{}")
    return folder


@pytest.fixture(scope="module")
def in_image(model, tmp_path_factory):
    """The bundle with busybox below the weights: an OCI image layout."""
    from support.kube.node import image

    place = tmp_path_factory.mktemp("image")
    with tarfile.open(fileobj=io.BytesIO(image("busybox"))) as tar:
        tar.extractall(place / "base", filter="data")
    fairlead("bundle", model, place / "bundle", "--base", place / "base", "--unsigned")
    return place / "bundle"


@pytest.fixture(scope="module")
def on_share(model, tmp_path_factory):
    place = tmp_path_factory.mktemp("share")
    fairlead("bundle", model, place / "bundle", "--form", "directory", "--unsigned")
    return place / "bundle"


def objects(bundle, *words):
    place = bundle.parent / "k8s"
    made = fairlead("manifests", bundle, place, *words)
    return [row for name in made["files"] for row in yaml.safe_load_all((place / name).read_text())]


@pytest.fixture(scope="module")
def server(control):
    control.api.apply(NAMESPACE)
    return control


def test_both_ways_are_accepted_with_every_field(server, in_image, on_share):
    ways = {
        "image": objects(in_image, "--image", REPOSITORY, "--gpus", "8", "--key-secret", "tiny-key"),
        "nfs": objects(on_share, "--image", SERVER, "--share", "10.0.0.4:/share/tiny", "--gpus", "8"),
        "mounted": objects(on_share, "--image", SERVER, "--share", "/mnt/lustre/tiny"),
    }
    for way, rows in ways.items():
        for row in rows:
            got = server.api.apply(row, dry_run=True)
            assert got["metadata"]["name"] == row["metadata"]["name"], way
            if row["kind"] in ("Deployment", "PersistentVolume"):
                assert within(row["spec"], got["spec"]), (way, row["kind"])


def within(asked, got) -> bool:
    """Whether the server kept all that was asked of it; empty values it leaves out."""
    if isinstance(asked, dict):
        return all(key in got and within(value, got[key]) for key, value in asked.items() if value not in ({}, ""))
    if isinstance(asked, list):
        return len(asked) == len(got) and all(map(within, asked, got))
    return str(asked) == str(got)


def test_a_field_that_is_misspelt_is_refused(server, in_image):
    """What makes the test above worth something."""
    (row,) = [row for row in objects(in_image, "--image", REPOSITORY) if row["kind"] == "Deployment"]
    row["spec"]["template"]["spec"]["containers"][0]["startupProb"] = {}
    with pytest.raises(Refused, match="startupProb"):
        server.api.apply(row, dry_run=True)


@pytest.fixture(scope="module")
def node(cluster):
    from support.kube.plugin import DevicePlugin

    cluster.api.apply(NAMESPACE)
    with DevicePlugin(cluster.plugins, "nvidia.com/gpu", 8, shown="/dev/nvidia", variable="NVIDIA_VISIBLE_DEVICES"):
        cluster.until(lambda: cluster.allocatable().get("nvidia.com/gpu") == "8", "GPUs")
        yield cluster


def have(node, layout, *names):
    """Bring an image layout into the node's store, as `ctr` of a site does from the medium."""
    archive = layout.parent / "image.tar"
    with tarfile.open(archive, "w") as tar:
        for path in sorted(layout.rglob("*")):
            tar.add(path, path.relative_to(layout), recursive=False)
    node.containers("images", "import", "--base-name", REPOSITORY, "--digests", str(archive))
    assert all(name in node.containers("images", "list", "-q") for name in names)


def served(node, rows):
    """Apply them; the running pod and where it answers."""
    for row in rows:
        node.api.apply(row)
    (deployment,) = [row for row in rows if row["kind"] == "Deployment"]
    node.api.until(deployment, lambda found: found.get("status", {}).get("readyReplicas") == 1, 120)
    (pod,) = [row for row in node.api.list("v1", "Pod", "models") if not row["metadata"].get("deletionTimestamp")]
    return pod, f"http://{pod['status']['podIP']}:8000"


def ask(node, url) -> str:
    code = "import sys, urllib.request as u; sys.stdout.write(u.urlopen(sys.argv[1], timeout=10).read().decode())"
    argv = [*node.enter, sys.executable, "-c", code, url]
    return subprocess.run(argv, capture_output=True, text=True, timeout=30, check=True).stdout


def gone(node, rows):
    """Pods at once: they would have `serve.drain_s` for answers that nobody waits for."""
    for row in reversed(rows):
        node.api.delete(row, gracePeriodSeconds="0")

    def is_empty() -> bool:
        pods = node.api.list("v1", "Pod", "models")
        for pod in pods:
            node.api.delete(pod, gracePeriodSeconds="0")
        return not pods

    node.until(is_empty, "no pod")


def holds(node, url):
    assert ask(node, f"{url}/health") == "ok\n"
    assert json.loads(ask(node, f"{url}/model/config.json")) == {"model_type": "llama"}
    assert ask(node, f"{url}/refused").count("Read-only file system") == 2
    env = dict(line.split("=", 1) for line in ask(node, f"{url}/env").splitlines())
    assert env["HF_HUB_OFFLINE"] == env["VLLM_NO_USAGE_STATS"] == "1"
    assert not [name for name in env if name.startswith("TINY_") or name.endswith("_KEY")]
    assert env["NVIDIA_VISIBLE_DEVICES"].count(",") == 1


@pytest.mark.requires("kubelet")
def test_the_image_of_the_bundle_starts_and_answers(node, in_image):
    rows = objects(in_image, "--image", REPOSITORY, "--gpus", "2", *COMMAND)
    (image,) = [
        row["spec"]["template"]["spec"]["containers"][0]["image"] for row in rows if row["kind"] == "Deployment"
    ]
    have(node, in_image, image)
    pod, url = served(node, rows)
    try:
        assert pod["spec"]["containers"][0]["image"] == image
        holds(node, url)
    finally:
        gone(node, rows)


@pytest.mark.requires("kubelet")
def test_the_share_is_mounted_and_nobody_may_write_there(node, in_image, on_share):
    image = f"{REPOSITORY}@{json.loads((in_image / 'fairlead-bundle.json').read_text())['image']}"
    have(node, in_image, image)
    share = node.root / "share"
    subprocess.run(["cp", "-r", str(on_share), str(share)], check=True)
    rows = objects(on_share, "--image", image, "--share", share, "--name", "tiny", "--gpus", "2", *COMMAND)
    _pod, url = served(node, rows)
    try:
        holds(node, url)
        assert not (share / "model" / "x").exists()
        claim = next(row for row in rows if row["kind"] == "PersistentVolumeClaim")
        assert node.api.until(claim, lambda found: found["status"]["phase"] == "Bound")
    finally:
        gone(node, rows)
