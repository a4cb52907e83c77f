"""A model on a closed site: what `serve manifests` writes, asked of a real API server, and run by a real kubelet.

The server in most images is busybox's httpd: what starts, is found healthy, answers and may not write is the
Deployment. One image has an engine, whose packets are watched. NFS is dry run alone: these namespaces have no NFS
server, and the node no mount.nfs. The network plugin here (ptp) enforces no NetworkPolicy, so that the policy is
accepted is seen, and that it holds is not.
"""

from __future__ import annotations

import io
import json
import shutil
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
    node.containers("images", "import", "--base-name", REPOSITORY, "--digests", str(archive), limit_s=600)
    archive.unlink()
    assert all(name in node.containers("images", "list", "-q") for name in names)


def served(node, rows, limit_s=120):
    """Apply them; the running pod and where it answers."""
    for row in rows:
        node.api.apply(row)
    (deployment,) = [row for row in rows if row["kind"] == "Deployment"]
    node.api.until(deployment, lambda found: found.get("status", {}).get("readyReplicas") == 1, limit_s)
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


# ---- an engine -------------------------------------------------------------------------------------------------------

GATEWAY = "198.51.100.1"
"""The node's end of every pod's link."""
PLANT = """
import socket
socket.socket().connect_ex(("192.0.2.7", 443))
try:
    socket.getaddrinfo("telemetry.example.com", 443)
except OSError:
    pass
"""
OWN = "import os; os.chmod('/cache', 0o700); from fairlead.cli.app import main; main()"
"""The kubelet lets everybody write to an emptyDir, and fairlead puts no run folder where others may write."""
CLIENT = """
import sys, openai
client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0, timeout=120)
print(*[model.id for model in client.models.list()])
asked = {"model": "tiny", "messages": [{"role": "user", "content": "a host"}], "temperature": 0}
print(client.chat.completions.create(**asked, max_tokens=4).usage.completion_tokens)
pieces = client.chat.completions.create(**asked, max_tokens=int(sys.argv[2]), stream=True)
print("begun", next(pieces).choices[0].index, flush=True)
print([piece.choices[0].finish_reason for piece in pieces if piece.choices][-1])
"""


@pytest.fixture(scope="module")
def with_engine(tmp_path_factory):
    """The bundle of a model that computes, on an image with this machine's Python and `fairlead serve run`."""
    for name in ("transformers", "accelerate", "aiohttp", "fastapi", "uvicorn", "openai", "packaging"):
        pytest.importorskip(name, reason=f"needs {name}: extras `serve` and `engine`, group `dev`")
    from support.kube.engine import layout
    from support.tinymodel import make_tiny

    place = tmp_path_factory.mktemp("engine")
    base = layout(place / "base")
    fairlead("bundle", make_tiny(place / "tiny"), place / "bundle", "--base", base, "--unsigned")
    shutil.rmtree(base)
    return place / "bundle"


def asking(node, url, tokens):
    """The official client, on the node."""
    argv = [*node.enter, sys.executable, "-c", CLIENT, url, str(tokens)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)


@pytest.mark.requires("kubelet")
@pytest.mark.timeout(1800)
def test_an_engine_in_a_pod_answers_and_reaches_nothing_outside(node, with_engine, tmp_path):
    """Every packet of the pod is seen, from its start to its end: they answer the node, and nobody else was asked."""
    from support.endpoints import SMALL
    from support.kube.engine import PYTHON
    from support.kube.packets import watched

    command = [PYTHON, "-c", OWN, "serve", "run", "/models/tiny", "--host", "0.0.0.0", "--port", "8000"]
    command += ["--engine", "transformers", "--runs", "/cache/runs", "--", *SMALL]
    rows = objects(with_engine, "--image", REPOSITORY, "--gpus", "1", "--", *command)
    (deployment,) = [row for row in rows if row["kind"] == "Deployment"]
    have(node, with_engine, deployment["spec"]["template"]["spec"]["containers"][0]["image"])
    with watched(node.enter, tmp_path / "packets", (GATEWAY, "192.0.2.1")) as packets:
        try:
            pod, url = served(node, rows, 600)
            with asking(node, url, 8) as client:
                assert client.communicate(timeout=300)[0].split() == ["tiny", "4", "begun", "0", "length"]
            assert packets.inside
            assert packets.outside == set()
            container = pod["status"]["containerStatuses"][0]["containerID"].partition("://")[2]
            node.containers("tasks", "exec", "--exec-id", "plant", container, PYTHON, "-c", PLANT)
            planted = {("192.0.2.7", 6, 443), ("192.0.2.53", 17, 53)}
            node.until(lambda: packets.outside == planted, f"what was planted, not {packets.outside}")
            # the kubelet ends it while it answers: the answer is whole
            with asking(node, url, 400) as client:
                begun = [client.stdout.readline() for _ in range(3)]
                assert begun[2] == "begun 0\n"
                node.api.merge(deployment, {"spec": {"replicas": 0}})
                node.until(lambda: _is_ending(node, pod), "SIGTERM")
                assert client.communicate(timeout=300)[0] == "length\n"
            node.until(lambda: not node.api.list("v1", "Pod", "models"), "no pod")
            assert packets.outside == planted
        finally:
            gone(node, rows)


def _is_ending(node, pod):
    found = node.api.list("v1", "Pod", "models")
    return any(
        row["metadata"]["name"] == pod["metadata"]["name"] and "deletionTimestamp" in row["metadata"] for row in found
    )
