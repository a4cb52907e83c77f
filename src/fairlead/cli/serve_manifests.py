"""`fairlead serve manifests`: files of Kubernetes for a bundle on a closed site."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter

from fairlead.base.files import write_atomic
from fairlead.base.trust import read_file
from fairlead.base.units import counted
from fairlead.cli.common import Common, SpecFile
from fairlead.cli.output import Answer
from fairlead.cli.serve import settings_of
from fairlead.errors import Exit, FairleadError, UsageError
from fairlead.records.verdict import Verdict

if TYPE_CHECKING:
    from fairlead.serve.record import Bundle
    from fairlead.serve.site import Served

_WHERE = Group("Where it comes from", sort_key=10)
_SERVER = Group("The server", sort_key=20)


def manifests(
    bundle: Path,
    dest: Path,
    *command: Annotated[str, Parameter(allow_leading_hyphen=True)],
    image: Annotated[str, Parameter(group=_WHERE)],
    share: Annotated[str, Parameter(group=_WHERE)] = "",
    name: Annotated[str, Parameter(group=_SERVER)] = "",
    namespace: Annotated[str, Parameter(group=_SERVER)] = "models",
    gpus: Annotated[int, Parameter(group=_SERVER)] = 1,
    replicas: Annotated[int, Parameter(group=_SERVER)] = 1,
    key_secret: Annotated[str, Parameter(group=_SERVER)] = "",
    spec: SpecFile = None,
    common: Common = Common(),
) -> Answer:
    """Write what Kubernetes needs to serve a bundle where nothing leads outside: a Deployment with probes and offline
    settings, a Service behind an internal load balancer, a NetworkPolicy that lets nothing out; with `--share` a
    volume that is mounted read-only.

    What is written is judged as `serve verify --manifests` judges it: a key or a public registry in it, and nothing is
    written.

    Parameters
    ----------
    bundle
        The bundle, as `serve bundle` made it: an image holds its weights, a folder stays on a share.
    dest
        A folder; files of the same names are replaced.
    command
        Behind `--`, the command that starts the server in its container, listening on port 8000; else `vllm serve`.
    image
        The repository the bundle was pushed to, whose digest is the bundle's own; with `--share`, the server's image
        by its digest: registry.site/vllm@sha256:...
    share
        The folder of the bundle as nodes see it: 10.0.0.4:/share/llama by NFS, or /mnt/lustre/llama where every node
        has it mounted.
    name
        What clients call the model; else as the bundle does.
    namespace
        Where everything is; it must be there.
    gpus
        Of each server.
    replicas
        How many servers.
    key_secret
        The name of a Secret in that namespace with VLLM_API_KEY; the key itself stands in no file.
    spec
        The cluster file, for [serve]; else FAIRLEAD_SPEC, or ./cluster.toml, where there is one.
    """
    from fairlead.plan.kubernetes.emit import to_yaml
    from fairlead.serve.record import MANIFEST, MAX_MANIFEST_BYTES, BadBundle, parse
    from fairlead.serve.site import Served, objects, share_of

    settings = settings_of(spec)
    if gpus < 0 or replicas < 0:
        raise UsageError("cli/usage", "neither GPUs nor servers can be fewer than none", hint="--gpus 8 --replicas 2")
    try:
        made = parse(read_file(bundle / MANIFEST, MAX_MANIFEST_BYTES, follow=False))
    except FileNotFoundError:
        text = f"{bundle} is no bundle: it has no {MANIFEST}"
        raise UsageError("serve/not-a-bundle", text, hint="fairlead serve bundle MODEL FOLDER makes one") from None
    except BadBundle as error:
        raise UsageError(error.code, error.message, hint=error.hint) from None
    called = name or made.name
    size = sum(file.size for file in made.files)
    served = Served(
        name=called,
        image=_image(made, image, share),
        command=command,
        at=f"/models/{called}" if share else f"/{made.at.lstrip('/')}",
        share=share_of(share, size) if share else None,
        gpus=gpus,
        replicas=replicas,
        namespace=namespace,
        key_secret=key_secret,
        patience_s=settings.patience_s,
        drain_s=settings.drain_s,
    )
    written = {file: to_yaml(found) for file, found in objects(served).items()}
    _refuse(written)
    dest.mkdir(parents=True, exist_ok=True)
    for file, text in written.items():
        write_atomic(dest / file, text)
    return Answer(
        schema="fairlead.serve-manifests/1",
        text=f"{dest}: {counted(len(written), 'file')} for {called}, {_what(served)}",
        body={"dest": str(dest), "files": list(written), "image": served.image, "model": called},
        hints=[f"kubectl apply --dry-run=server -f {dest}"],
    )


def _image(made: Bundle, image: str, share: str) -> str:
    """The image by its digest. Raises UsageError where the bundle does not go with what is asked."""
    if share and made.form == "oci":
        hint = "leave out --share, or make the bundle with --form directory"
        raise UsageError("cli/usage", "the weights of this bundle are in its image", hint=hint)
    if not share and made.form == "directory":
        raise UsageError("cli/usage", "this bundle is a folder, and no share holds it", hint="--share SERVER:/EXPORT")
    if share:
        return image
    if not made.base:
        text = "the bundle's image holds weights alone, and no server"
        raise UsageError("serve/base", text, hint="fairlead serve bundle MODEL FOLDER --base ./vllm")
    if "@" in image and not image.endswith("@" + made.image):
        raise UsageError("cli/usage", f"{image} is another image than the bundle's, {made.image}", hint="--image REPO")
    repository, _, last = image.partition("@")[0].rpartition("/")
    return (
        f"{repository}/{last.partition(':')[0]}@{made.image}"
        if repository
        else f"{last.partition(':')[0]}@{made.image}"
    )


def _refuse(written: dict[str, str]) -> None:
    """Nothing is written that `verify --manifests` would not pass."""
    from fairlead.plan.lint.judge import lint_paths

    with tempfile.TemporaryDirectory(prefix="fairlead-") as place:
        for file, text in written.items():
            Path(place, file).write_text(text)
        findings = lint_paths((Path(place),), offline=True).findings
    bad = next((finding for finding in findings if finding.verdict in (Verdict.FAIL, Verdict.UNKNOWN)), None)
    if bad is not None:
        raise FairleadError(bad.code, f"it is not written: {bad.message}", hint=bad.remedy, exit=Exit.FAIL)


def _what(served: Served) -> str:
    where = "the weights in its image" if served.share is None else f"the weights on {served.share.path}, read-only"
    return f"{where}, {counted(served.gpus, 'GPU')} each"
