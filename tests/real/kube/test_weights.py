"""What `weights kubernetes` writes, asked of a real API server and run by a real kubelet.

The pods of the DaemonSet have this machine's programs in place of an image's. No service network leads to the API
server here, so the Job itself is dry run alone: its command is run on this machine, with the rights of its account.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from support.backends import stand_in
from support.examples import HERE
from support.kube.client import Refused

yaml = pytest.importorskip("yaml", reason="needs PyYAML: extra `plan`")

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.requires("kube")]
SETTINGS = '\n[kubernetes]\nnamespace = "ml"\nselector = "app=weights"\n'
FILE = HERE.replace('via = "local"', f'via = "kubernetes"{SETTINGS}').replace("localhost", "gpu-[0-2]")


def test_all_of_it_is_accepted_with_every_field(control, tmp_path) -> None:
    (tmp_path / "cluster.toml").write_text(FILE)
    words = ["weights", "kubernetes", "az://models/m", "/mnt/nvme/m", "k8s", "--image", "registry.site/fairlead:1"]
    command = [sys.executable, "-m", "fairlead", *words, "--secret", "origin", "--host-network", "-f", "cluster.toml"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=60)
    control.api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml"}})
    paths = sorted((tmp_path / "k8s").iterdir())
    made = [row for path in paths for row in yaml.safe_load_all(path.read_text())]
    assert len(made) == 6
    for row in made:
        got = control.api.apply(row, dry_run=True)
        assert got["metadata"]["name"] == "weights"
        assert within(row.get("spec", {}), got.get("spec", {})), row["kind"]
    (daemons,) = [row for row in made if row["kind"] == "DaemonSet"]
    fields = daemons["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    fields["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"][0]["matchFields"][0]["values"] *= 2
    with pytest.raises(Refused, match="matchFields"):
        control.api.apply(daemons, dry_run=True)


@pytest.mark.requires("kubelet", "root")
def test_with_the_rights_of_its_account_the_model_comes_to_the_node(cluster, tmp_path) -> None:
    from support.kube.node import NODE

    if not shutil.which("kubectl"):
        pytest.skip("kubectl is missing: see kubernetes.io/docs/tasks/tools")
    (tmp_path / "cluster.toml").write_text(FILE.replace("gpu-[0-2]", NODE))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights.bin").write_bytes(os.urandom(3_000_000))
    dest = str(tmp_path / "node" / "model")
    words = ["weights", "kubernetes", str(tmp_path / "model"), dest, "k8s", "--image", "registry.site/fairlead:1"]
    command = [sys.executable, "-m", "fairlead", *words, "-f", "cluster.toml"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=60)
    rows = {
        row["kind"]: row
        for path in sorted((tmp_path / "k8s").iterdir())
        for row in yaml.safe_load_all(path.read_text())
    }
    pod, programs = rows["DaemonSet"]["spec"]["template"]["spec"], stand_in("x")["spec"]
    pod["containers"][0] |= {key: programs["containers"][0][key] for key in ("image", "imagePullPolicy", "env")}
    pod["containers"][0]["volumeMounts"] += programs["containers"][0]["volumeMounts"]
    pod["volumes"] += programs["volumes"]
    cluster.api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml"}})
    for kind in ("DaemonSet", "ServiceAccount", "Role", "RoleBinding"):
        cluster.api.apply(rows[kind])
    cluster.api.until(rows["DaemonSet"], lambda found: found.get("status", {}).get("numberReady") == 1, 120)

    account = "system:serviceaccount:ml:weights"
    cluster.issue(account, user=account)
    (container,) = rows["Job"]["spec"]["template"]["spec"]["containers"]
    job = [sys.executable, "-m", *container["command"]]
    job[job.index("-f") + 1] = str(tmp_path / "cluster.toml")
    env = {**os.environ, "KUBECONFIG": str(cluster.config(account))}
    done = subprocess.run([*job, "--json"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert json.loads(done.stdout)["verdict"] == "pass"
    there = tmp_path / "node" / "model" / "weights.bin"
    assert there.read_bytes() == (tmp_path / "model" / "weights.bin").read_bytes()
    secrets = subprocess.run(
        ["kubectl", "-n", "ml", "get", "secrets"], env=env, capture_output=True, text=True, timeout=30
    )
    assert "Forbidden" in secrets.stderr, "it may do nothing else"


def within(asked, got) -> bool:
    """Whether the server kept all that was asked of it."""
    if isinstance(asked, dict):
        return all(key in got and within(value, got[key]) for key, value in asked.items())
    if isinstance(asked, list):
        return len(asked) == len(got) and all(map(within, asked, got))
    return str(asked) == str(got)
