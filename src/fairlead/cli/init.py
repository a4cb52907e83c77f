"""`fairlead init`: a new cluster file, commented, that passes `fairlead check` as it stands."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from fairlead.base.files import write_atomic
from fairlead.base.table import table
from fairlead.cli.common import Common
from fairlead.cli.output import Answer
from fairlead.errors import UsageError
from fairlead.spec.here import look, tree_of
from fairlead.spec.loader import DEFAULT_FILE, preset_names, preset_text
from fairlead.spec.write import write


def init(
    *,
    preset: str | None = None,
    from_here: Annotated[bool, Parameter(negative=())] = False,
    output: Annotated[Path, Parameter(name=("--output", "-o"), allow_leading_hyphen=True)] = Path(DEFAULT_FILE),
    force: Annotated[bool, Parameter(negative=())] = False,
    list_: Annotated[bool, Parameter(name="--list", negative=())] = False,
    common: Common = Common(),
) -> Answer:
    """Write a commented cluster file.

    Parameters
    ----------
    preset
        What to start from; `--list` lists them. Without one, the lab.
    from_here
        Start from what this machine shows: its GPUs and InfiniBand ports, its VM size, and Slurm's nodes.
    output
        Where to write it; `-` prints it instead.
    force
        Write over a file that is there.
    list_
        List the presets and write nothing.
    """
    if list_:
        rows = [(name, _title(name)) for name in preset_names()]
        presets = [{"name": name, "title": title} for name, title in rows]
        return Answer(schema="fairlead.presets/1", text=table(["PRESET", "WHAT"], rows), body={"presets": presets})
    if preset and from_here:
        raise UsageError("cli/usage", "--preset and --from-here exclude each other", hint="fairlead init --help")
    if from_here:
        here = look()
        name, text = "from-here", write(tree_of(here), title="\n".join([f"What {here.hostname} shows.", *here.notes]))
    else:
        name = preset or "lab"
        text = write(tomllib.loads(preset_text(name)), title=_title(name))
    if str(output) == "-":
        return Answer(schema="fairlead.init/1", text=text, body={"preset": name, "file": "-", "text": text})
    if output.is_dir():
        raise UsageError(
            "spec/exists", f"{output} is a directory", hint=f"fairlead init --output {output / DEFAULT_FILE}"
        )
    if not force and (output.exists() or output.is_symlink()):
        raise UsageError("spec/exists", f"{output} is already there", hint=f"fairlead init --output {output} --force")
    write_atomic(output, text)
    named = "" if output == Path(DEFAULT_FILE) else f" -f {output}"
    return Answer(
        schema="fairlead.init/1",
        text=f"wrote {output}: {_title(name) if not from_here else 'what this machine shows'}",
        body={"preset": name, "file": str(output)},
        hints=[f"fairlead check{named}"],
    )


def _title(name: str) -> str:
    """What a preset says of itself in its first line."""
    return preset_text(name).splitlines()[0].removeprefix("# ")
