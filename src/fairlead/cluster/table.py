"""`[slurm]` and `[kubernetes]` in the cluster file: what can be set, and what must fit together."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from fairlead.cluster.slurmforms import wrong_settings
from fairlead.cluster.sshforms import wrong_option
from fairlead.spec.model import Seconds, Spec
from fairlead.spec.problems import Problems


class Slurm(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Slurm, for `via = "slurm"`, and for the lab."""

    partition: str = ""
    """The partition to run in; left out, Slurm's default."""

    account: str = ""
    """The account to charge; left out, Slurm's default."""

    reservation: str = ""
    """A reservation to run in."""

    options: tuple[str, ...] = ("--exclusive", "--mem=0")
    """More sbatch options for the job that holds the nodes. The default asks for whole nodes, with all their memory."""

    step_options: tuple[str, ...] = ()
    """More srun options for every step that runs in that job: probes, agents, ranks. Of `options`, those that only have
    an effect on steps (--container-..., --export, --network) reach them too."""

    time_limit_min: Annotated[int, Meta(ge=1, le=43_200)] = 60
    """How long that job may hold its nodes, in minutes; fairlead cancels it when it is done with them."""

    pending_s: Seconds = 60.0
    """How long to wait for that job to start."""

    container: str = ""
    """A container image for ranks: a path or a URL, as the runtime takes it. A [[pool]] may name its own."""

    container_mounts: tuple[str, ...] = ()
    """What the container sees of its node: ["/data:/data"]."""

    container_runtime: Literal["none", "pyxis", "apptainer"] = "none"
    """What starts the container: pyxis (with enroot) or apptainer."""

    lab: bool = False
    """Run a real Slurm in the lab: a controller, and a slurmd on each host."""


DNS_LABEL = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
DNS_SUBDOMAIN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
"""RFC 1123, as https://kubernetes.io/docs/concepts/overview/working-with-objects/names/ has them."""


class Kubernetes(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Kubernetes, for `via = "kubernetes"`: the pods that stand for the nodes are there already."""

    namespace: Annotated[str, Meta(pattern=DNS_LABEL, max_length=63)] = "default"
    """The namespace of the pods."""

    selector: Annotated[str, Meta(max_length=1000, pattern=r"^(?!-)")] = ""
    """Which pods: a label selector, "app=fairlead". Left out, all of the namespace."""

    container: Annotated[str, Meta(max_length=63, pattern=r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$")] = ""
    """The container of the pod to run things in; left out, the one that `kubectl exec` takes."""

    context: Annotated[str, Meta(max_length=253, pattern=r"^(?!-)")] = ""
    """The context of the kubeconfig; left out, the current one."""


def rules(spec: Spec, report: Problems) -> None:
    """Every setting is one word or one line, and none of ssh's lowers a guard; a container needs image and runtime; a
    Slurm in the lab needs a lab.
    """
    slurm = spec.table(Slurm)
    words = {key: getattr(slurm, key) for key in ("partition", "account", "reservation", "container")}
    lists = {key: getattr(slurm, key) for key in ("options", "step_options", "container_mounts")}
    for wrong in wrong_settings(words, lists):
        report(("slurm", *wrong.path), "cluster/slurm-setting", wrong.message, hint=wrong.hint)
    for number, option in enumerate(spec.access.ssh_options):
        if wrong_ssh := wrong_option(option):
            report(("access", "ssh_options", number), "cluster/ssh-setting", wrong_ssh[0], hint=wrong_ssh[1])
    for number, pool in enumerate(spec.pools):
        for wrong in wrong_settings({"container": pool.container}, {}):
            report(("pool", number, *wrong.path), "cluster/slurm-setting", wrong.message, hint=wrong.hint)
    own = [i for i, pool in enumerate(spec.pools) if pool.container]
    if own and slurm.container_runtime == "none":
        text = "`container` needs `container_runtime` in [slurm] too"
        report(("pool", own[0], "container"), "cluster/container-half", text, needs=[("slurm", "container_runtime")])
    elif not own and bool(slurm.container) != (slurm.container_runtime != "none"):
        have, lack = ("container", "container_runtime") if slurm.container else ("container_runtime", "container")
        report(("slurm", have), "cluster/container-half", f"`{have}` needs `{lack}` too", needs=[("slurm", lack)])
    if slurm.lab and not spec.is_lab:
        text = f'`lab` starts a Slurm in the lab, but `via` is "{spec.access.via}"'
        report(("slurm", "lab"), "cluster/slurm-lab", text, needs=[("access", "via")])
