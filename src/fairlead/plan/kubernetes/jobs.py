"""Test jobs: all-reduce over two nodes as an MPIJob, RDMA between two pods as Jobs. Pure.

Every all-reduce checks its values (`-c 1`), one worker stands on a node, and processes are slots times workers.
"""

from __future__ import annotations

import shlex

from fairlead.plan.kubernetes.parts import (
    NAMESPACE,
    Manifest,
    amounts,
    image,
    meta,
    nccl_env,
    second_network,
    versions,
    worker_pod,
)
from fairlead.plan.wanted import PoolWanted, Wanted, least_nodes_of

WAIT_TRIES, WAIT_S = 120, 10
"""How long a launcher waits for its workers: twenty minutes, as a first pull of an image with CUDA takes ten."""
FIRST_BYTES, LAST_BYTES, STEP, REPEATS = 8, 8 << 30, 4, 10
"""Sizes of the all-reduce where no limit of the VM size names a larger one."""


def last_bytes(pool: PoolWanted) -> int:
    """The largest message: what the size's limits for all-reduces hold for, so that the result can be judged."""
    rows = [
        r for name in ("node_allreduce_busbw_gbs", "job_allreduce_busbw_gbs") for r in pool.size.reached.get(name, ())
    ]
    return max([LAST_BYTES, *(row.message_bytes for row in rows)])


def allreduce(wanted: Wanted, pool: PoolWanted) -> Manifest:
    """nccl-tests, or rccl-tests on AMD, over two nodes of a pool with all their GPUs and ports."""
    is_amd = pool.size.gpu_vendor == "amd"
    tool = "rccl-tests" if is_amd else "nccl-tests"
    name = f"allreduce-{pool.name}"
    workers, slots = least_nodes_of(pool), amounts(wanted, pool)[pool.gpu_resource]
    env = nccl_env(wanted, pool)
    library = "/opt/rocm/lib" if is_amd else "$LD_LIBRARY_PATH"
    words = [
        *("mpirun", "--allow-run-as-root", "-np", str(workers * slots), "--bind-to", "none"),
        *("-mca", "plm_rsh_args", "-o StrictHostKeyChecking=no"),
        *(part for key, value in env.items() for part in ("-x", f"{key}={value}")),
    ]
    test = [
        versions()[tool]["program"],
        *("-b", str(FIRST_BYTES), "-e", str(last_bytes(pool)), "-f", str(STEP), "-g", "1"),
        *("-n", str(REPEATS), "-c", "1"),
    ]
    run = f'{shlex.join(words)} -x LD_LIBRARY_PATH="{library}" {shlex.join(test)}'
    reach = [
        "mpirun",
        "--allow-run-as-root",
        "-np",
        str(workers),
        "-mca",
        "plm_rsh_args",
        "-o StrictHostKeyChecking=no",
    ]
    # workers come when their image is there; one that never comes must not keep the others' GPUs
    wait = (
        f"for try in $(seq {WAIT_TRIES}); do {shlex.join([*reach, 'true'])} && break; "
        f'[ "$try" -lt {WAIT_TRIES} ] || {{ echo "not all workers came within their time" >&2; exit 1; }}; '
        f"sleep {WAIT_S}; done"
    )
    spread = {"training.kubeflow.org/job-name": name, "training.kubeflow.org/job-role": "worker"}
    container: Manifest = {"name": "ranks", "image": image(tool, wanted)}
    if is_amd:
        serve = "mkdir -p /run/sshd && exec /usr/sbin/sshd -De -o StrictModes=no"
        container |= {"command": ["/bin/sh", "-c", serve]}
    notes = second_network(wanted, pool)
    launcher = {
        "restartPolicy": "OnFailure",
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "containers": [
            {
                "name": "mpirun",
                "image": image(tool, wanted),
                "command": ["/bin/bash", "-c"],
                "args": [f"set -e\n{wait}\n{run}\n"],
                "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}},
            }
        ],
    }
    spec: Manifest = {
        "slotsPerWorker": slots,
        "runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": 0},
        "mpiReplicaSpecs": {
            "Launcher": {"replicas": 1, "template": _template(launcher, {})},
            "Worker": {
                "replicas": workers,
                "template": _template(worker_pod(wanted, pool, container, spread_by=spread), notes),
            },
        },
    }
    if is_amd:
        spec["sshAuthMountPath"] = "/root/.ssh"
    return {"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "metadata": meta(name), "spec": spec}


def rdma_pair(wanted: Wanted, pool: PoolWanted) -> list[Manifest]:
    """ib_write_bw between two pods on two nodes: a service, the one that listens, the one that asks.

    A pod without an InfiniBand device fails; an asker that cannot reach the other one ends after its time. With IPoIB
    the pods have no RDMA port of their own, and sockperf goes over their second network instead.
    """
    name = f"rdma-{pool.name}"
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": meta(name),
        "spec": {"clusterIP": "None", "selector": {"pair": name, "side": "server"}, "publishNotReadyAddresses": True},
    }
    return [service, _side(wanted, pool, name, "server"), _side(wanted, pool, name, "client")]


def _side(wanted: Wanted, pool: PoolWanted, name: str, side: str) -> Manifest:
    find = (
        "device=$(for d in /sys/class/infiniband/*; do "
        'grep -q InfiniBand "$d"/ports/1/link_layer && basename "$d" && break; done)\n'
        '[ -n "$device" ] || { echo "this pod has no InfiniBand device" >&2; exit 1; }\n'
    )
    test = 'ib_write_bw --ib-dev "$device" --all --report_gbits --iters 5000'
    peer = f"{name}.{NAMESPACE}.svc"
    if side == "client":
        test = (
            f'for try in $(seq 60); do {test} {peer} && exit 0; sleep 2; done; echo "no answer from {peer}" >&2; exit 1'
        )
    container = {
        "name": side,
        "image": image("ibtools", wanted),
        "command": ["/bin/bash", "-c"],
        "args": [f"set -eu\n{find}{test}\n"],
    }
    pod = worker_pod(wanted, pool, container, spread_by={"pair": name}, gpus=False)
    pod["restartPolicy"] = "Never"
    template = _template(pod, second_network(wanted, pool))
    template["metadata"]["labels"] = {"pair": name, "side": side}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": meta(f"{name}-{side}"),
        "spec": {"backoffLimit": 0, "activeDeadlineSeconds": 900, "template": template},
    }


def _template(pod: Manifest, notes: dict[str, str]) -> Manifest:
    return {"metadata": {"annotations": notes} if notes else {}, "spec": pod}
