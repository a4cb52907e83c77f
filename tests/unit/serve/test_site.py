"""Objects for a closed site: both ways, what they must hold, and what is refused before it is written."""

from __future__ import annotations

import json

import msgspec
import pytest

from fairlead.cli.app import run
from fairlead.errors import UsageError
from fairlead.serve.image import OFFLINE
from fairlead.serve.site import Served, Share, label, objects, share_of

DIGEST = f"registry.site/vllm@sha256:{'a' * 64}"
IN_IMAGE = Served(name="Llama-3.1", image=DIGEST, at="/models/Llama-3.1", gpus=8, patience_s=1800, drain_s=300)
ON_SHARE = msgspec.structs.replace(
    IN_IMAGE, at="/models/llama", share=Share(server="10.0.0.4", path="/share/llama", size_bytes=5 << 30)
)


def one(served: Served, kind: str) -> dict:
    (found,) = [row for rows in objects(served).values() for row in rows if row["kind"] == kind]
    return found


@pytest.mark.parametrize("served", [IN_IMAGE, ON_SHARE], ids=["image", "share"])
def test_what_both_ways_hold(served):
    deployment = one(served, "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert {row["name"]: row.get("value") for row in container["env"]}.items() >= OFFLINE.items()
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "8"}
    assert container["startupProbe"]["failureThreshold"] * container["startupProbe"]["periodSeconds"] >= 1800
    assert pod["terminationGracePeriodSeconds"] > 300
    policy = one(served, "NetworkPolicy")["spec"]
    assert policy["egress"] == []
    assert "Egress" in policy["policyTypes"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"] == labels == one(served, "Service")["spec"]["selector"]
    mounted = {row["name"] for row in container["volumeMounts"]}
    assert mounted == {row["name"] for row in pod["volumes"]}


def test_a_share_is_mounted_read_only_at_every_place_that_can_say_so():
    volume, claim, deployment = (one(ON_SHARE, k) for k in ("PersistentVolume", "PersistentVolumeClaim", "Deployment"))
    assert volume["spec"]["accessModes"] == claim["spec"]["accessModes"] == ["ReadOnlyMany"]
    assert volume["spec"]["nfs"]["readOnly"]
    assert "ro" in volume["spec"]["mountOptions"]
    pod = deployment["spec"]["template"]["spec"]
    assert [row["persistentVolumeClaim"]["readOnly"] for row in pod["volumes"] if row["name"] == "model"] == [True]
    assert [row["readOnly"] for row in pod["containers"][0]["volumeMounts"] if row["name"] == "model"] == [True]
    assert claim["spec"]["volumeName"] == volume["metadata"]["name"]


def test_a_key_is_named_by_its_secret_alone():
    served = msgspec.structs.replace(IN_IMAGE, key_secret="llama-key")
    env = one(served, "Deployment")["spec"]["template"]["spec"]["containers"][0]["env"]
    (key,) = [row for row in env if row["name"] == "VLLM_API_KEY"]
    assert key == {
        "name": "VLLM_API_KEY",
        "valueFrom": {"secretKeyRef": {"name": "llama-key", "key": "VLLM_API_KEY"}},
    }


@pytest.mark.parametrize("image", ["registry.site/vllm:1", "registry.site/vllm", f"@sha256:{'a' * 64}"])
def test_an_image_without_a_digest_is_refused(image):
    with pytest.raises(UsageError, match="digest"):
        objects(msgspec.structs.replace(IN_IMAGE, image=image))


@pytest.mark.parametrize("said", ["share", "10.0.0.4:", "10.0.0.4:share", "/a/../b", "/a b"])
def test_what_is_no_share(said):
    with pytest.raises(UsageError, match="no share"):
        share_of(said, 1)


def test_a_name_that_kubernetes_takes_from_none():
    with pytest.raises(UsageError, match="no name"):
        label("___")


@pytest.fixture
def bundle(tmp_path):
    """The manifest of a folder bundle: nothing else is read."""
    folder = tmp_path / "b"
    folder.mkdir()
    said = {"schema": "fairlead.bundle/1", "name": "llama", "form": "directory", "platform": "any", "licence": "MIT",
            "at": "model", "files": [], "stored": []}  # fmt: skip
    (folder / "fairlead-bundle.json").write_text(json.dumps(said))
    return folder


def written(bundle, *words):
    made = bundle.parent / "k8s"
    status = run(["serve", "manifests", str(bundle), str(made), "--share", "/mnt/lustre/llama", *words])
    return status, sorted(path.name for path in made.glob("*"))


def test_what_is_written_passes_what_manifests_are_held_to(bundle, capsys):
    pytest.importorskip("yaml", reason="needs PyYAML: extra `plan`")
    status, names = written(bundle, "--image", DIGEST)
    assert status == 0, capsys.readouterr().err
    assert names == ["10-network-policy.yaml", "20-share.yaml", "30-deployment.yaml", "40-service.yaml"]
    assert run(["serve", "verify", "--manifests", str(bundle.parent / "k8s")]) == 0, capsys.readouterr()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--image", DIGEST, "--", "vllm", "serve", "/models/llama", "--api-key", "sk-1234567890abcdef"), "plan/key"),
        (("--image", f"vllm/vllm-openai@sha256:{'a' * 64}"), "plan/public-registry"),
        (("--image", "registry.site/vllm:latest"), "digest"),
    ],
)
def test_what_would_be_refused_on_the_site_is_not_written(bundle, capsys, words, code):
    pytest.importorskip("yaml", reason="needs PyYAML: extra `plan`")
    status, names = written(bundle, *words)
    assert status != 0
    assert not names
    assert code in capsys.readouterr().err
