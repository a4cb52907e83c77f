"""`fairlead serve run`: a model behind OpenAI's HTTP API."""

from __future__ import annotations

import shlex
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from fairlead.base.shown import shown
from fairlead.base.units import counted
from fairlead.cli.common import Common, SpecFile
from fairlead.cli.output import Answer, session
from fairlead.cli.serve import settings_of
from fairlead.errors import Exit, FairleadError
from fairlead.records.finding import verdict_of, worst_first
from fairlead.records.verdict import Verdict

_ENGINE = Group("The engine", sort_key=10)
_ACCESS = Group("Who may ask", sort_key=20)


def run(
    source: Path,
    *more: Annotated[str, Parameter(allow_leading_hyphen=True)],
    name: str = "",
    host: Annotated[str, Parameter(group=_ACCESS)] = "127.0.0.1",
    port: Annotated[int, Parameter(group=_ACCESS)] = 8000,
    allow_host: Annotated[tuple[str, ...], Parameter(group=_ACCESS, negative=())] = (),
    api_keys: Annotated[Path | None, Parameter(group=_ACCESS)] = None,
    engine: Annotated[str, Parameter(group=_ENGINE)] = "",
    python: Annotated[str, Parameter(group=_ENGINE)] = "",
    key: Path | None = None,
    allow_pickle: Annotated[bool, Parameter(negative=())] = False,
    ask: str = "",
    dry_run: Annotated[bool, Parameter(negative=())] = False,
    spec: SpecFile = None,
    common: Common = Common(),
) -> Answer:
    """Serve a model by OpenAI's HTTP API (/v1/models, /v1/chat/completions, /v1/completions, also as streams; /health,
    /metrics), with an engine that is installed: vLLM, else `transformers serve`.

    It is ready once the model is verified and the engine has answered a question. SIGTERM finishes the answers that had
    begun; a second one ends at once. An engine that dies is started again.

    Parameters
    ----------
    source
        The folder of a model, or of a bundle made with `--form directory`, every byte of which is verified first.
    more
        Behind `--`, options for the engine: `-- --tensor-parallel-size 8`.
    name
        What clients call the model; else the name of the folder.
    host
        The address to listen on: 0.0.0.0 for everyone who can reach this host.
    port
        Where to listen; 0 takes any that is free.
    allow_host
        A name that requests may use for this host, again for each. On the loopback its own names alone are taken, so
        that no page in a browser can ask by another.
    api_keys
        A file with keys, one a line; each request needs one of them.
    engine
        vllm or transformers; else the first of them that is there.
    python
        The Python that has the engine, when it is installed in an environment of its own.
    key
        The public key that must have signed the bundle.
    allow_pickle
        Load weights of a plain folder in formats that can run code; a bundle was asked that when it was made.
    ask
        Ask this once it is ready, print what the model says, and end.
    dry_run
        Verify the model, and only say how the engine would be started.
    spec
        The cluster file, for limits in [serve]; else FAIRLEAD_SPEC, or ./cluster.toml, where there is one.
    """
    from fairlead.serve.endpoint.engines import Wanted, engine_command
    from fairlead.serve.endpoint.run import Place, context_of, engine_in, keys_in, model_of, name_of, serve

    settings = settings_of(spec)
    model, is_bundle = model_of(source)
    called = name_of(source, name)
    keys = keys_in(api_keys) if api_keys is not None else None
    interpreter = python or sys.executable
    chosen = engine_in(interpreter, engine)
    if host not in ("127.0.0.1", "localhost", "::1"):
        who = "with a key" if keys else "without a key"
        session().note(f"warning: everyone who can reach {host} may ask, {who}; nothing is encrypted here")
    verify = partial(_verified, source, key) if is_bundle else partial(_fit, model, allow_pickle)
    if dry_run:
        verify()
        command = engine_command(interpreter, chosen, Wanted(model=str(model.resolve()), name=called, port=0), more)
        body = {"model": called, "engine": chosen.name, "command": command, "context": context_of(model)}
        return Answer(schema="fairlead.serve-run/1", text=shlex.join(command), body=body)
    folder = session().open_folder(common.runs).path
    place = Place(
        model=model.resolve(),
        name=called,
        host=host,
        port=port,
        folder=folder.resolve(),
        python=interpreter,
        engine=chosen,
        more=more,
        hosts=allow_host,
        ask=ask,
    )
    session().note(f"{called} by {chosen.name}; its log: {folder}/engine.log")
    out = serve(
        place,
        settings,
        keys=keys,
        verify=verify,
        said=session().note,
    )
    return Answer(
        schema="fairlead.serve-run/1",
        text=shown(out.reply) if ask else f"{called}: {counted(out.answers, 'answer')}",
        body={"model": called, "engine": chosen.name, "answers": out.answers, "reply": out.reply},
    )


def _verified(bundle: Path, key: Path | None) -> None:
    from fairlead.serve.image import this_platform
    from fairlead.serve.record import public_key
    from fairlead.serve.verify import verify

    trusted = public_key(key) if key is not None else None
    _bundle, findings = verify(bundle, key=trusted, platform=this_platform())
    if verdict_of(findings) in (Verdict.FAIL, Verdict.UNKNOWN):
        hint = f"fairlead serve verify {bundle}" + (f" --key {key}" if key else "")
        worst = worst_first(findings)[0]
        text = f"{bundle} is not served: {worst.subject.name}: {worst.message}"
        raise FairleadError("serve/refused", text, hint=hint, exit=Exit.FAIL)


def _fit(folder: Path, allow_pickle: bool) -> None:  # noqa: FBT001 - one caller
    from fairlead.serve.model import look, refuse

    refuse(look(folder), folder, allow_pickle=allow_pickle)
