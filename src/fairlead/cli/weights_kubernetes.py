"""`fairlead weights kubernetes`: what a cluster of Kubernetes needs for a model on every node."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from cyclopts import Group, Parameter

from fairlead.base.confidential import hide
from fairlead.base.files import disk_errors, write_atomic
from fairlead.base.trust import read_file, why_not_ours
from fairlead.base.units import counted
from fairlead.cli.common import Common, Exclude, Nodes, SpecFile, chosen
from fairlead.cli.output import Answer
from fairlead.errors import UsageError

_HOW = Group("How", sort_key=20)
_FILES = Group("More files", sort_key=40)
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,50}[a-z0-9])?\Z")
_ROOT = re.compile(r"[0-9a-f]{64}\Z")
MOST_BYTES = 1 << 24
_IMAGE = re.compile(r"[A-Za-z0-9][^\s]{0,500}\Z")


def kubernetes(
    source: str,
    dest: str,
    out: Path,
    *,
    image: Annotated[str, Parameter(group=_HOW)],
    secret: Annotated[str, Parameter(group=_HOW)] = "",
    name: Annotated[str, Parameter(group=_HOW)] = "weights",
    host_network: Annotated[bool, Parameter(group=_HOW, negative=())] = False,
    used_by: Annotated[tuple[Path, ...], Parameter(group=_FILES, negative=())] = (),
    root: Annotated[str, Parameter(group=_FILES)] = "",
    nodes: Nodes = None,
    exclude: Exclude = "",
    spec: SpecFile = None,
    common: Common = Common(),
) -> Answer:
    """Write what Kubernetes needs for a model on every node: pods that hold the folder, and a Job that fills it through
    them. Nothing is contacted.

    The cluster file says `via = "kubernetes"`, and under [kubernetes] the namespace and a `selector` such as
    "app=weights": the pods get these labels, and the Job takes the file with it. Pods that use the model mount DEST of
    their node read-only. A second Job fetches what is missing or has changed.

    Parameters
    ----------
    source
        Where the objects are, as for `spread`.
    dest
        A folder of every node: /mnt/nvme/llama.
    out
        A folder for the files; files of the same names are replaced.
    image
        An image with Python, `fairlead[weights]` and kubectl: for the Job, and for the pods on nodes, which need Python
        alone.
    secret
        The name of a Secret with the origin's credentials (AZURE_STORAGE_SAS_TOKEN, HF_TOKEN, ...): the Job gets its
        keys as environment, nodes never do.
    name
        Of the objects.
    host_network
        Bytes go over the nodes' own interfaces (IP over InfiniBand, accelerated Ethernet), not over the pods' network.
    used_by
        A manifest of pods that use the model (a Deployment, a Job, ...): written to OUT/40-NAME with DEST mounted
        read-only, and an init container that holds each pod until the model is on its node. Again for each.
    root
        Hold those pods until this version is there: `root` of `fairlead weights spread --json`.
    """
    from fairlead.cluster.table import Kubernetes
    from fairlead.plan.kubernetes.emit import to_yaml
    from fairlead.spec.loader import read
    from fairlead.weights.pods import Wished, held, objects

    if hide(source) != source:
        hint = "--secret NAME, of a Secret with AZURE_STORAGE_SAS_TOKEN, HF_TOKEN, ..."
        raise UsageError("cli/usage", "a manifest is no place for a secret, and the source holds one", hint=hint)
    place = PurePosixPath(dest)
    if not place.is_absolute() or ".." in place.parts or len(place.parts) < 3:
        raise UsageError("cli/usage", f"{dest!a} is no folder below another one", hint="/mnt/nvme/llama")
    for what, said, rule in (("--name", name, _NAME), ("--secret", secret or "x", _NAME), ("--image", image, _IMAGE)):
        if not rule.match(said):
            raise UsageError("cli/usage", f"{what} {said!a} is none", hint="fairlead weights kubernetes --help")
    loaded = read(spec)
    if loaded.spec.access.via != "kubernetes":
        text = f"the cluster file reaches its nodes by {loaded.spec.access.via}"
        raise UsageError("cli/usage", text, hint='[access] via = "kubernetes"; [kubernetes] selector = "app=weights"')
    wanted = chosen(nodes, exclude, loaded.spec.nodes)
    only = "" if wanted == loaded.spec.nodes else str(wanted)
    wished = Wished(
        source=source, dest=dest, image=image, secret=secret, only=only, host_network=host_network, name=name
    )
    if root and not _ROOT.match(root):
        raise UsageError("cli/usage", f"--root {root!a} is no root", hint="`root` of fairlead weights spread --json")
    made = objects(wished, loaded.spec.table(Kubernetes), list(wanted), loaded.text)
    for users in used_by:
        if (name_ := f"40-{users.stem}.yaml") in made:
            raise UsageError("cli/usage", f"two manifests would be {name_}", hint="give one of them another name")
        made[name_] = held(wished, _documents(users), root)
    with disk_errors(out):
        out.mkdir(0o755, parents=True, exist_ok=True)
        for manifest, found in made.items():
            write_atomic(out / manifest, to_yaml(found), mode=0o644)
    what = f"{out}: {counted(len(made), 'file')} for {dest} on {counted(len(wanted), 'node')}"
    if why := why_not_ours(out):
        what += f"\nothers may change these files before they are applied: {why}"
    return Answer(
        schema="fairlead.weights-kubernetes/1",
        text=lambda: what,
        body={"folder": str(out), "files": list(made), "nodes": len(wanted)},
        hints=[f"kubectl apply -f {out}", f"kubectl wait --for=condition=complete --timeout=-1s job/{name}"],
    )


def _documents(file: Path) -> list[Any]:
    """The objects of a manifest. Raises UsageError."""
    import yaml

    try:
        return [each for each in yaml.safe_load_all(read_file(file, MOST_BYTES)) if each is not None]
    except (OSError, yaml.YAMLError, RecursionError, ValueError) as error:
        text = f"{file} is no manifest: {' '.join(str(error).split())}"
        raise UsageError("cli/usage", text, hint="--used-by deployment.yaml") from None
