"""Manifests of a closed site. The bad ones have what published ones have (mocelj/aks-air-gap-vllm-deployment @ 32cef15,
deployment-llama3-vllm-fat.yaml and the NIM deployment; docs.vllm.ai, "Using Kubernetes"), written anew.
"""

from __future__ import annotations

import pytest

from fairlead.plan.lint.judge import lint_paths
from fairlead.records.verdict import Verdict

SERVICE = """\
apiVersion: v1
kind: Service
metadata:
  name: llama
  annotations:
    service.beta.kubernetes.io/azure-load-balancer-internal: "true"
spec:
  type: LoadBalancer
  selector: {app: llama}
  ports: [{port: 80, targetPort: 8000}]
"""
DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: llama}
spec:
  selector: {matchLabels: {app: llama}}
  template:
    metadata: {labels: {app: llama}}
    spec:
      containers:
      - name: vllm
        image: site.azurecr.io/llama@sha256:0000000000000000000000000000000000000000000000000000000000000000
        args: ["vllm", "serve", "/models/llama", "--served-model-name", "llama"]
        env:
        - {name: HF_HUB_OFFLINE, value: "1"}
        - {name: TRANSFORMERS_OFFLINE, value: "1"}
        - {name: VLLM_NO_USAGE_STATS, value: "1"}
        resources: {limits: {nvidia.com/gpu: 1}}
"""
TRAPS = {
    "public load balancer": (
        "plan/public-load-balancer",
        '    service.beta.kubernetes.io/azure-load-balancer-internal: "true"',
        '    example.com/other: "true"',
        "8:3",
    ),
    "the annotation says no": ("plan/public-load-balancer", 'internal: "true"', 'internal: "false"', "8:3"),
    "no host": ("plan/public-registry", "site.azurecr.io/llama@", "vllm/vllm-openai:v0.8.2 #", "22:9"),
    "nvcr.io": (
        "plan/public-registry",
        "site.azurecr.io/llama@",
        "nvcr.io/nim/meta/llama3-8b-instruct:1.0.0 #",
        "22:9",
    ),
    "a token by its name": (
        "plan/key-in-manifest",
        "        env:\n",
        "        env:\n        - {name: NGC_API_KEY, value: abcdefgh}\n",
        "25:31",
    ),
    "a token by its form": (
        "plan/key-in-manifest",
        '"--served-model-name", "llama"]',
        '"hf_' + 'abcdefghijklmnopqrst"]',
        "23:",
    ),
    "usage reported": ("plan/online-settings", "VLLM_NO_USAGE_STATS", "VLLM_LOGGING_LEVEL", ""),
    "hub asked": ("plan/online-settings", 'HF_HUB_OFFLINE, value: "1"', 'HF_HUB_OFFLINE, value: "0"', ""),
}


def found(tmp_path, text):
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / "site.yaml").write_text(text)
    return [f for f in lint_paths([tmp_path], offline=True).findings if f.verdict is not Verdict.PASS]


WELL = SERVICE + "---\n" + DEPLOYMENT


def test_manifests_of_a_closed_site_pass_each_rule(tmp_path):
    (tmp_path / "site.yaml").write_text(WELL)
    findings = lint_paths([tmp_path], offline=True).findings
    assert {(f.code, f.verdict) for f in findings} == {
        (f"plan/{name}", Verdict.PASS)
        for name in ("public-load-balancer", "public-registry", "key-in-manifest", "online-settings")
    }


@pytest.mark.parametrize("trap", TRAPS)
def test_a_trap_is_found_where_it_stands(tmp_path, trap):
    code, well, bad, at = TRAPS[trap]
    assert well in WELL
    hits = found(tmp_path, WELL.replace(well, bad))
    assert [f.code for f in hits] == [code]
    assert f"site.yaml:{at}" in hits[0].subject.name
    assert hits[0].remedy


def test_a_setting_turned_off_fails_and_one_that_an_image_may_set_warns(tmp_path):
    off = found(tmp_path / "a", WELL.replace('HF_HUB_OFFLINE, value: "1"', 'HF_HUB_OFFLINE, value: "0"'))
    left = found(tmp_path / "b", WELL.replace('        - {name: HF_HUB_OFFLINE, value: "1"}\n', ""))
    assert [f.verdict for f in (*off, *left)] == [Verdict.FAIL, Verdict.WARN]


def test_a_secret_with_values_is_a_key_and_is_never_printed(tmp_path):
    secret = (
        "apiVersion: v1\nkind: Secret\nmetadata: {name: hub}\nstringData:\n  token: nothing-special-in-its-form\n"
        "  other: ''\n"
    )
    hits = found(tmp_path, secret)
    assert [(f.code, f.data["line"]) for f in hits] == [("plan/key-in-manifest", 5)]
    assert "nothing-special" not in str([(f.message, f.evidence) for f in hits])


def test_a_key_by_reference_and_a_cluster_ip_are_well(tmp_path):
    text = WELL.replace(
        "        env:\n",
        "        env:\n        - {name: API_KEY, valueFrom: {secretKeyRef: {name: a, key: b}}}\n",
    ).replace("type: LoadBalancer", "type: ClusterIP")
    assert found(tmp_path, text) == []


def test_elsewhere_than_on_a_closed_site_nobody_asks(tmp_path):
    (tmp_path / "site.yaml").write_text(WELL.replace("site.azurecr.io/llama@", "vllm/vllm-openai:v1 #"))
    assert not [f for f in lint_paths([tmp_path]).findings if f.code == "plan/public-registry"]
