"""What `weights kubernetes` writes, asked of a real API server: every field is kept, and a misspelt one is refused."""

from __future__ import annotations

import subprocess
import sys

import pytest

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


def within(asked, got) -> bool:
    """Whether the server kept all that was asked of it."""
    if isinstance(asked, dict):
        return all(key in got and within(value, got[key]) for key, value in asked.items())
    if isinstance(asked, list):
        return len(asked) == len(got) and all(map(within, asked, got))
    return str(asked) == str(got)
