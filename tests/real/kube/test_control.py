"""The control plane itself: what it refuses, who may ask, and that nothing is left of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx2
import pytest

from support.kube.client import Refused
from support.processes import left_after

pytestmark = [pytest.mark.real, pytest.mark.requires("kube")]


def job(name: str, **container: object) -> dict:
    pod = {"restartPolicy": "Never", "containers": [{"name": "c", "image": "example.test/none:1", **container}]}
    spec = {"template": {"spec": pod}, "backoffLimit": 0}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "namespace": "default"}, "spec": spec}


def test_it_is_the_version_that_was_built(control):
    from support.kube.build import VERSION

    assert control.api.ask("GET", "/version")["gitVersion"] == f"v{VERSION}"


def test_a_dry_run_goes_through_admission_and_keeps_nothing(control, fresh_name):
    made = control.api.apply(job(fresh_name), dry_run=True)
    # what only the server fills in
    assert made["spec"]["template"]["spec"]["schedulerName"] == "default-scheduler"
    with pytest.raises(Refused) as error:
        control.api.get("batch/v1", "Job", fresh_name)
    assert error.value.status == 404


@pytest.mark.parametrize(
    ("container", "words"),
    [
        ({"securityContext": {"capabilitiez": {"add": ["IPC_LOCK"]}}}, "capabilitiez"),
        ({"securityContext": {"capabilities": {"add": "IPC_LOCK"}}}, "expected list"),
        ({"resources": {"limits": {"nvidia.com/gpu": "eight"}}}, "quantities must match the regular expression"),
        ({"resources": {"requests": {"nvidia.com/gpu": "4"}, "limits": {"nvidia.com/gpu": "8"}}}, "must be equal to"),
        ({"resources": {"requests": {"rdma/ib": "8"}}}, "Limit must be set for non overcommitable resources"),
        ({"resources": {"limits": {"rdma/ib": "1.5"}}}, "must be an integer"),
        ({"image": ""}, "image: Required value"),
    ],
)
def test_a_manifest_with_a_fault_is_refused_by_its_field(control, fresh_name, container, words):
    with pytest.raises(Refused) as error:
        control.api.apply(job(fresh_name, **container), dry_run=True)
    assert words in str(error.value)


def test_a_kind_that_it_does_not_have_is_named(control):
    claim = {"apiVersion": "batch/v1", "kind": "MPIJob", "metadata": {"name": "x"}}
    with pytest.raises(Refused, match="no MPIJob in batch/v1"):
        control.api.apply(claim, dry_run=True)


def test_nobody_is_heard_without_a_certificate(control):
    from support.kube.client import Api

    stranger = Api(control.url, control.ca)
    with pytest.raises(Refused) as error:
        stranger.ask("GET", "/api/v1/secrets")
    assert error.value.status == 403
    stranger.close()
    with httpx2.Client(verify=False, trust_env=False) as client, pytest.raises(httpx2.TransportError):
        client.get(f"https://127.0.0.1:{control.etcd}/version")


def test_it_ends_with_whoever_started_it(tmp_path):
    """By SIGKILL, which no `finally` sees."""
    code = (
        "import sys, time\n"
        "from support.kube.control import ControlPlane\n"
        "with ControlPlane() as whole:\n"
        "    print(whole.root, flush=True)\n"
        "    time.sleep(3600)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True) as child:
        root = child.stdout.readline().strip()
        assert root.startswith("/tmp/fl-kube-")
        child.send_signal(signal.SIGKILL)
    assert not left_after(root, 60)
    subprocess.run(["rm", "-r", "--", root], check=True)


def test_stopping_leaves_no_process_and_no_file():
    from support.kube.control import ControlPlane

    begin = time.monotonic()
    with ControlPlane() as whole:
        assert len(whole.daemons) == 4
        assert time.monotonic() - begin < 120
    assert not left_after(str(whole.root), 20)
    assert not whole.root.exists()
