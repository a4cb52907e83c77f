"""One call of each verb, as its room gives it: a file of its own in tests/real/cli/examples, `[[example]]` for each.

    verb    what is called
    words   what stands behind it; {root} is this repository, {lab} a lab that stands, {other} one that does not
    bare    the same for a machine without labs and without any extra; left out: `words`
    extra   the extra it cannot do without
    after   the verb whose run it looks at, called before it
    slow    takes more than about 20 s
    ends    it runs until it is told to end (SIGTERM), which is once it has said a line on stderr

The folder it is called in holds here.toml (this machine), kube.toml (pods), lab.toml (a lab), sleeper.py (a program
that waits), sacct.txt (a job that ended), train.toml (a model of a few thousand parameters), served (a model of one
tensor) and on-share (what a bundle on a share says of itself).
"""

from __future__ import annotations

import array
import json
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "real" / "cli" / "examples"

HERE = """
schema = 1
[cluster]
name = "here"
[[pool]]
name = "here"
nodes = "localhost"
size = "other"
[fabric]
link = "ethernet"
rdma = "none"
[access]
via = "local"
"""


BUNDLE = """\
{"schema": "fairlead.bundle/1", "name": "served", "form": "directory", "platform": "any", "licence": "MIT",
 "at": "model", "files": [], "stored": []}
"""
TRAIN = """
[model]
path = "model"
init = "random"
[data]
tokens = "tokens.npy"
[run]
steps = 2
"""
SACCT = """JobID|State|ExitCode|Start|End|NodeList
4711|COMPLETED|0:0|2026-03-02T10:00:00|2026-03-02T11:00:00|n[0-1]
"""
MODEL = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


@dataclass(frozen=True, kw_only=True)
class Example:
    """One call."""

    verb: str
    words: list[str]
    bare: list[str] | None = None
    extra: str = ""
    after: str = ""
    slow: bool = False
    ends: bool = False

    def called(self, *, bare: bool = False, **names: str) -> list[str]:
        """Its words, with names filled in."""
        words = self.bare if bare and self.bare is not None else self.words
        return [word.format(root=ROOT, **names) for word in words]


def examples() -> dict[str, Example]:
    """Every example by its verb."""
    texts = [file.read_text() for file in sorted(FOLDER.glob("*.toml"))]
    rows = [Example(**row) for text in texts for row in tomllib.loads(text)["example"]]
    found = {row.verb: row for row in rows}
    assert len(found) == len(rows), "a verb has two examples"
    return found


def fill(folder: Path, lab: str) -> None:
    """What the calls find in their folder."""
    changes = {
        '"here"': f'"{lab}"',
        "localhost": "n[0-1]",
        'size = "other"': 'size = "lab"\ngpus = 1',
        'rdma = "none"': 'rdma = "mrc"\nplanes = 2\nt0 = 1\nt1 = 1',
        'via = "local"': 'via = "lab"',
    }
    there = HERE
    for old, new in changes.items():
        there = there.replace(old, new)
    (folder / "here.toml").write_text(HERE)
    (folder / "lab.toml").write_text(there)
    (folder / "kube.toml").write_text(
        HERE.replace('via = "local"', 'via = "kubernetes"\n[kubernetes]\nselector = "app=weights"')
    )
    (folder / "sleeper.py").write_text("import time\n\ntime.sleep(600)\n")
    (folder / "sacct.txt").write_text(SACCT)
    (folder / "train.toml").write_text(TRAIN)
    (folder / "served").mkdir()
    for name, text in {"config.json": "{}", "tokenizer.json": "{}", "README.md": "---\nlicense: mit\n---\n"}.items():
        (folder / "served" / name).write_text(text)
    header = json.dumps({"w": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}}).encode()
    (folder / "served" / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    (folder / "on-share").mkdir()
    (folder / "on-share" / "fairlead-bundle.json").write_text(BUNDLE)
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps(MODEL))
    head = b"{'descr': '<i8', 'fortran_order': False, 'shape': (4, 8), }".ljust(117) + b"\n"
    tokens = array.array("q", (n * n % 61 for n in range(32))).tobytes()
    (folder / "tokens.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + tokens)
