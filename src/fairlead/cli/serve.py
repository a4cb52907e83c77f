"""`fairlead serve`: bundles for sites without the outside world, and the proof that a server calls nobody."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter

from fairlead.base.units import counted, size
from fairlead.cli.common import Common, SpecFile
from fairlead.cli.output import Answer, session
from fairlead.errors import FairleadError, UsageError
from fairlead.records.verdict import Verdict

if TYPE_CHECKING:
    from fairlead.records.finding import Finding
    from fairlead.serve.bundle import Plan
    from fairlead.serve.image import Base
    from fairlead.serve.table import Serve

_WHAT = Group("What", sort_key=10)
_TRUST = Group("Trust", sort_key=20)
_PROOF = Group("The offline proof", sort_key=30)
_Flag = Parameter(negative=())
_KEYS = "openssl genpkey -algorithm ed25519 -out bundle.key"


def bundle(
    source: str,
    dest: Path,
    *,
    form: Annotated[Literal["oci", "directory"], Parameter(group=_WHAT)] = "oci",
    name: Annotated[str, Parameter(group=_WHAT)] = "",
    base: Annotated[str, Parameter(group=_WHAT)] = "",
    wheels: Annotated[Path | None, Parameter(group=_WHAT)] = None,
    platform: Annotated[str, Parameter(group=_WHAT)] = "",
    key: Annotated[Path | None, Parameter(group=_TRUST)] = None,
    unsigned: Annotated[bool, Parameter(group=_TRUST, negative=())] = False,
    allow_pickle: Annotated[bool, Parameter(group=_TRUST, negative=())] = False,
    dry_run: Annotated[bool, Parameter(negative=())] = False,
    common: Common = Common(),
) -> Answer:
    """Make one bundle of a model, for a site that has no way out: an OCI image layout with each shard as a layer of its
    own, or a folder; with a signed manifest (SHA-256 of every file) and a bill of materials.

    DEST appears when it is whole; a run that was killed goes on where it was. The same model gives the same digests.

    Parameters
    ----------
    source
        The folder of the model, or where `fairlead weights` can have it: hf://OWNER/MODEL@REVISION, az://, s3://, gs://,
        https://. Then it is pulled to a folder beside DEST first, which goes when the bundle is whole.
    dest
        The bundle: a folder that is not there yet.
    form
        An OCI image layout, which registries and container tools read, or a folder for a shared file system.
    name
        What the model is called; else the name of its folder. In an image it lies in /models/NAME.
    base
        The image to put the weights on, of the server that is to run: an OCI image layout, or `docker://IMAGE` of a
        registry, which skopeo fetches with its own settings.
    wheels
        With `--form directory`: a folder of wheels that install the engine, as `pip download --only-binary :all:`
        leaves one; each requirement of theirs must be among them.
    platform
        Of the image or the wheels: linux/amd64, linux/arm64; else that of this machine.
    key
        The private key that signs, Ed25519 in PEM.
    unsigned
        Make it without a signature.
    allow_pickle
        Take weights in formats that can run code when they are loaded.
    dry_run
        Only say how large everything will be.
    """
    import shutil

    from fairlead.serve.bundle import make, planned, refuse_existing
    from fairlead.serve.fetch import layout_beside, model_beside
    from fairlead.serve.image import this_platform
    from fairlead.serve.model import NOASSERTION, look, refuse
    from fairlead.serve.record import private_key
    from fairlead.serve.wheels import Wheels, look_wheels, refuse_wheels

    if base and form == "directory":
        raise UsageError("cli/usage", "a folder stands on no image", hint="leave out --base, or --form oci")
    if wheels is not None and form != "directory":
        raise UsageError("cli/usage", "an image has its engine below it", hint="--base ./vllm, or --form directory")
    if key is None and not unsigned and not dry_run:
        raise UsageError("serve/key", "nothing signs the bundle", hint=f"--key bundle.key ({_KEYS}), or --unsigned")
    signer = private_key(key) if key is not None else None
    wanted = platform or this_platform()
    refuse_existing(dest)  # before anything is fetched
    folder = Path(source)
    if "://" in source:
        name = name or source.partition("://")[2].partition("?")[0].partition("@")[0].rstrip("/").rpartition("/")[2]
        folder = _pulled(source, model_beside(dest), common, fetches=not dry_run)
    model = look(folder)
    refuse(model, folder, allow_pickle=allow_pickle)
    below = _base(base, dest, wanted, fetches=not dry_run) if base else None
    found = look_wheels(wheels) if wheels is not None else Wheels()
    if wheels is not None:
        refuse_wheels(found, wheels, wanted)
    engine = (wheels, found.wheels) if wheels is not None else None
    plan = planned(model, folder, dest, form=form, name=name, platform=wanted, base=below, wheels=engine)
    if model.licence == NOASSERTION:
        session().note("the model's card names no licence: README.md with `license:` in its head")
    if dry_run:
        return Answer(schema="fairlead.serve-plan/1", text=lambda: _plan_text(plan), body={"plan": plan})
    made = make(plan, base=below, key=signer, said=_progress("bundle", plan.size))
    for beside in (layout_beside(dest), model_beside(dest)):
        shutil.rmtree(beside, ignore_errors=True)
    layers = len({file.layer for file in made.files if file.layer})
    what = (
        f"{counted(len(made.files), 'file')} in {counted(layers, 'layer')}"
        if layers
        else counted(len(made.files), "file")
    )
    lines = [f"{dest}: {made.name}, {what}, {size(plan.size)}, licence {made.licence}"]
    lines += [f"image    {made.image}"] if made.image else []
    lines += [f"engine   {counted(len(made.wheels), 'wheel')}, for {made.platform}"] if made.wheels else []
    return Answer(
        schema="fairlead.serve-bundle/1",
        text="\n".join(lines),
        body={"dest": str(dest), "bundle": made, "bytes": plan.size, "signed": signer is not None},
        hints=[f"fairlead serve verify {dest} --key bundle.pub" if signer else f"fairlead serve verify {dest}"],
    )


def _pulled(source: str, folder: Path, common: Common, *, fetches: bool) -> Path:
    """The folder that a model of elsewhere is pulled to. Raises FairleadError where not all of it could be had."""
    from fairlead import weights

    if not fetches:
        text = f"--dry-run reads the model itself, and {source} is not here"
        raise UsageError(
            "cli/usage", text, hint=f"fairlead weights ls {source}, which says how large; or without --dry-run"
        )
    chosen = weights.choose(source)
    session().open_folder(common.runs)
    report = weights.pull(chosen, folder, progress=session().progress)
    if report.verdict is not Verdict.PASS:
        worst = report.findings[0]
        raise FairleadError(worst.code, f"{source}: {worst.message}", hint=worst.remedy)
    return folder


def _base(said: str, dest: Path, platform: str, *, fetches: bool) -> Base | None:
    """The image to stand on; None for one of a registry that is not to be fetched."""
    from fairlead.serve.fetch import REGISTRY, fetch, layout_beside
    from fairlead.serve.image import read_base

    if not said.startswith(REGISTRY):
        return read_base(Path(said), platform)
    if not fetches:
        session().note(f"without {said}: only a real run fetches it")
        return None
    session().note(f"fetching {said}")
    return read_base(fetch(said, layout_beside(dest), platform), platform)


def verify(
    *words: Annotated[str, Parameter(allow_leading_hyphen=True)],
    key: Annotated[Path | None, Parameter(group=_TRUST)] = None,
    platform: Annotated[str, Parameter(group=_TRUST)] = "",
    manifests: Annotated[tuple[Path, ...], Parameter(group=_WHAT, negative=())] = (),
    offline_proof: Annotated[bool, Parameter(group=_PROOF, negative=())] = False,
    url: Annotated[str, Parameter(group=_PROOF)] = "http://127.0.0.1:8000",
    watch: Annotated[float | None, Parameter(group=_PROOF)] = None,
    patience: Annotated[float | None, Parameter(group=_PROOF)] = None,
    allow: Annotated[tuple[str, ...], Parameter(group=_PROOF, negative=())] = (),
    spec: SpecFile = None,
    common: Common = Common(),
) -> Answer:
    """Whether a bundle is what its maker signed, whether manifests of Kubernetes fit a site without a way out, or
    whether a server calls anybody: `fairlead serve verify --offline-proof -- vllm serve /models/llama`.

    The proof starts the command in a network that has nothing but a loopback, asks it real questions, and records
    every connection and every name it tries, with the process that did. Exit codes: 0 all is well; 3 it is not; 4 it
    could not be judged.

    Parameters
    ----------
    words
        The bundle; with `--offline-proof`, behind `--`, the command that starts the server. No shell is involved.
    key
        The public key you trust, in PEM; without it, nobody is asked whose signature it is.
    platform
        Where the bundle will run: linux/amd64; else this machine.
    manifests
        Files of Kubernetes, or folders of them: public load balancers, public registries, keys, offline settings that
        are missing.
    offline_proof
        Prove that a server makes no call to the outside.
    url
        Where the server listens once it is up, on the loopback.
    watch
        Seconds it is watched after the questions, for calls that come late; else `serve.watch_s`. vLLM reports its
        usage again after 600.
    patience
        Seconds it may take until it names its model at /v1/models; else `serve.patience_s`.
    allow
        Destinations that do not count, as findings name them, with * and ?: 'unix:/dev/log'; again for each.
    spec
        The cluster file, for [serve]; else FAIRLEAD_SPEC, or ./cluster.toml, where there is one.
    """
    if words and words[0].startswith("-"):
        raise UsageError("cli/usage", f"no option `{words[0]}`", hint="fairlead serve verify --help")
    if offline_proof:
        if manifests or key is not None:
            raise UsageError("cli/usage", "the proof takes a command alone", hint="verify the bundle by itself")
        flags = {"serve.watch_s": watch, "serve.patience_s": patience}
        return _proof(words, allow, common, url=url, settings=settings_of(spec, flags))
    if len(words) > 1 or (not words and not manifests):
        raise UsageError("cli/usage", "name one bundle", hint="fairlead serve verify BUNDLE --key bundle.pub")
    from fairlead.records.finding import verdict_of, worst_first

    body: dict[str, Any] = {}
    findings: list[Finding] = []
    if words:
        from fairlead.serve.image import this_platform
        from fairlead.serve.record import public_key
        from fairlead.serve.verify import verify as check

        trusted = public_key(key) if key is not None else None
        folder = Path(words[0])
        said = _progress("verify", _bytes_below(folder))
        body["bundle"], found = check(folder, key=trusted, platform=platform or this_platform(), said=said)
        findings += found
    if manifests:
        from fairlead.plan.lint.judge import lint_paths

        linted = lint_paths(manifests, offline=True)
        body["files"] = linted.files
        findings += linted.findings
    findings = worst_first(findings)
    return Answer(
        schema="fairlead.serve-verify/1",
        verdict=verdict_of(findings),
        text=lambda: _findings_text(findings),
        body={**body, "findings": findings},
        hints=_explain(findings),
    )


def _proof(command: tuple[str, ...], allow: tuple[str, ...], common: Common, *, url: str, settings: Serve) -> Answer:
    from urllib.parse import urlsplit

    from fairlead.records.codec import to_json
    from fairlead.records.finding import verdict_of
    from fairlead.serve.proof.judge import judge
    from fairlead.serve.proof.prove import prove

    if not command:
        hint = "fairlead serve verify --offline-proof -- vllm serve /models/llama"
        raise UsageError("cli/usage", "no command to prove", hint=hint)
    parts = urlsplit(url)
    if parts.scheme != "http" or parts.hostname not in ("127.0.0.1", "localhost", "::1"):
        raise UsageError("cli/usage", f"{url} is not on the loopback", hint="--url http://127.0.0.1:8000")
    folder = session().open_folder(common.runs)
    log = folder.path / "server.log"
    session().note(f"the server is started without a network; its output: {log}")
    record = prove(command, log=log, url=url, watch_s=settings.watch_s, patience_s=settings.patience_s, allowed=allow)
    folder.write("proof.json", to_json(record))
    findings = judge(record, allow)
    return Answer(
        schema="fairlead.serve-proof/1",
        verdict=verdict_of(findings),
        text=lambda: _findings_text(findings),
        body={"command": list(command), "allow": list(allow), "proof": record, "findings": findings},
        hints=_explain(findings),
    )


def settings_of(spec: Path | None, said: dict[str, float | None] | None = None) -> Serve:
    """[serve] of the cluster file, if there is one, with the flags laid over."""
    import os

    import msgspec

    from fairlead.serve.table import Serve
    from fairlead.spec.loader import DEFAULT_FILE, read

    if spec is not None or os.environ.get("FAIRLEAD_SPEC") or Path(DEFAULT_FILE).exists():
        return read(spec, flags=said or {}).spec.table(Serve)
    own = {key.partition(".")[2]: value for key, value in (said or {}).items() if value is not None}
    try:
        return msgspec.convert(own, Serve)
    except msgspec.ValidationError as error:
        raise UsageError("cli/usage", str(error), hint="--watch 60 --patience 600") from None


def _findings_text(findings: list[Finding]) -> str:
    from fairlead.report.text import findings_text, paint_for

    return findings_text(findings, paint_for(session().stdout), passes=True)


def _explain(findings: list[Finding]) -> list[str]:
    first = next((f.code for f in findings if f.verdict not in (Verdict.PASS, Verdict.SKIP)), "")
    return [f"fairlead explain {first}"] if first else []


def _plan_text(plan: Plan) -> str:
    from fairlead.base.table import table

    rows = [
        [size(part.size), part.files[0].path, f"and {len(part.files) - 1} more" if len(part.files) > 1 else ""]
        for part in plan.parts
    ]
    heads = ["SIZE", "LAYER" if plan.form == "oci" else "FILE", ""]
    below = f", {size(plan.base_bytes)} of the base image among it" if plan.base_bytes else ""
    return "\n".join([table(heads, rows), f"{size(plan.size)} in all{below}; licence {plan.licence}"])


def _bytes_below(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else 0


def _progress(what: str, total: int) -> Callable[[int], None]:
    done, shown = 0, -1

    def said(num: int) -> None:
        nonlocal done, shown
        done += num
        if min(done, total) >> 20 != shown:
            shown = min(done, total) >> 20
            session().progress(what, shown, total >> 20, "MiB")

    return said
