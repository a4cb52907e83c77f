"""A room that is put beside the others is there: nothing else is edited."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import fairlead
from fairlead.base import rooms
from fairlead.base.machine import capability, names
from fairlead.cli.app import run
from fairlead.records.codes import explanations
from fairlead.records.runs import RunFolder
from fairlead.spec.loader import read
from fairlead.spec.model import Spec
from fairlead.spec.reference import pages

ROOM = '''
"""A room for a day."""
from fairlead.base.rooms import Doctor, Room, Schema, Table, Verb

ROOM = Room(
    verbs=(
        Verb("greet", "fairlead.{name}.verb:greet", "Say hello.", 5, rejudge="fairlead.{name}.verb:rejudge"),
        Verb("wave", "", "Ways to wave.", 6),
        Verb("wave twice", "fairlead.{name}.verb:twice"),
        Verb("lab greet", "fairlead.{name}.verb:greet"),
    ),
    tables=(
        Table(
            "manners",
            "fairlead.{name}.table:Manners",
            via=("ssh",),
            rules="fairlead.{name}.table:rules",
            derived="fairlead.{name}.table:derived",
        ),
    ),
    schemas=(Schema("greeting", "what was said", "fairlead.{name}.verb:Greeting"),),
    doctor=(Doctor("hat", "greeting politely", "apt install hat", programs=("no-such-hat",)),),
    limits=("fairlead.{name}.table:limits",),
    pages=("fairlead.{name}.verb:pages",),
)
'''
VERB = '''
"""Its verbs."""
import msgspec
from fairlead.cli.common import Common
from fairlead.cli.output import Answer
from fairlead.errors import UsageError
from fairlead.records.finding import Finding, node
from fairlead.records.verdict import Verdict

class Greeting(msgspec.Struct):
    """What was said."""
    word: str = "hello"
    """The word."""

def greet(*, common: Common = Common()) -> Answer:
    """Say hello to all."""
    return Answer(schema="fairlead.greet/1", text="hello", body={"greeting": Greeting()})

def twice(*, common: Common = Common()) -> Answer:
    """Wave two times."""
    raise UsageError("hello/no-arm", "no arm to wave", hint="grow one")

def rejudge(run):
    said = run.read("greeting.json", dict)["word"]
    how = Verdict.PASS if said == "hello" else Verdict.FAIL
    return [Finding(code="hello/no-arm", verdict=how, subject=node("n1"), message=f"said {said}")]

def pages():
    return {"greetings.md": "hello"}
'''
TABLE = '''
"""Its table."""
from typing import Annotated
from msgspec import Meta, Struct
from fairlead.records.limit import Limit
from fairlead.spec.resolve import Origin

class Manners(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to greet."""
    bows: Annotated[int, Meta(ge=0, le=3)] = 1
    """How deep to bow."""
    word: str | None = None
    """What to say; left out, the cluster's name."""

def rules(spec, report):
    if spec.table(Manners).word == "boo":
        report(("manners", "word"), "hello/no-arm", "nobody says `boo`", hint="say hello")

def limits(spec):
    bows = spec.table(Manners).bows
    yield Limit(name="bows", what="how deep", judges="at least", value=bows, source="custom", key="manners.bows")

def derived(spec, said):
    if ("manners", "word") not in said:
        yield ("manners", "word"), spec.cluster.name, Origin("derived", "from [cluster] name")
'''
FILE = """\
schema = 1
[cluster]
name = "moon"
[[pool]]
name = "p"
size = "other"
nodes = "n1"
[access]
via = "ssh"
[manners]
bows = 2
"""
CODES = """
["hello/no-arm"]
title = "There is no arm."
cause = "None has grown."
evidence = "Look at your side."
remedy = "Grow one."
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder of one room, among the places that hold rooms. Each has a name of its own: modules are kept."""
    name = f"throwaway_{tmp_path.name.replace('-', '_')}"
    room = tmp_path / "more" / name
    room.mkdir(parents=True)
    (room / "__init__.py").write_text('raise RuntimeError("a list of rooms must not load them")\n')
    (room / "room.py").write_text(ROOM.replace("{name}", name))
    (room / "verb.py").write_text(VERB)
    (room / "table.py").write_text(TABLE)
    (room / "codes.toml").write_text(CODES)
    monkeypatch.setattr(fairlead, "__path__", [*fairlead.__path__, str(room.parent)])
    monkeypatch.chdir(tmp_path)
    return room


def works(place):
    (place / "__init__.py").write_text('"""A room."""\n')


def told(capsys, *words):
    status = run(words)
    return status, *capsys.readouterr()


def test_its_verbs_stand_in_the_list_in_their_place(place, capsys):
    lines = [line.split()[0] for line in told(capsys, "--help")[1].splitlines() if line.startswith("  ")]
    assert lines[:3] == ["greet", "wave", "init"]
    assert "greet" not in lines[3:], "a verb of a family stands in the family's list"


def test_its_verbs_work_also_below_the_family_of_another_room(place, capsys):
    works(place)
    for words in (["greet"], ["lab", "greet"]):
        assert told(capsys, *words)[:2] == (0, "hello\n")
    assert "twice  Wave two times." in told(capsys, "wave")[1]
    assert "greet" in told(capsys, "lab", "--help")[1]


@pytest.fixture
def file(place):
    works(place)
    path = Path("cluster.toml")
    path.write_text(FILE)
    return path


def test_its_table_is_read_completed_and_its_origins_are_known(file, place, capsys):
    status, out, _ = told(capsys, "check", "--origin")
    rows = [" ".join(line.split()) for line in out.splitlines()]
    assert status == 0
    assert "manners.bows 2 cluster.toml:11" in rows
    assert 'manners.word "moon" derived from [cluster] name' in rows
    spec = read(file).spec
    assert (spec.table("manners").bows, spec.table("manners").word) == (2, "moon")
    kind = rooms.load(f"fairlead.{place.name}.table:Manners")
    assert spec.table(kind) is spec.table("manners")
    assert spec.with_table(kind(bows=0)).table(kind).bows == 0
    by_hand = Spec(schema=1, access=spec.access)
    assert by_hand.table(kind) == kind(), "not read from a file: the defaults"
    assert by_hand.with_table(kind(bows=3)).table(kind).bows == 3


@pytest.mark.parametrize(
    ("old", "new", "told_of"),
    [
        ("bows = 2", "bows = 4", "cluster.toml:11: `bows` is 4; it must be at most 3"),
        ("bows = 2", "bosw = 4", "cluster.toml:11: unknown key `bosw` in [manners]"),
        ("bows = 2", 'word = "boo"', "cluster.toml:11: nobody says `boo`"),
        ("[manners]", "[maners]", "cluster.toml:10: unknown key `maners`"),
    ],
)
def test_what_is_wrong_in_its_table_is_told_with_its_line(file, capsys, old, new, told_of):
    file.write_text(FILE.replace(old, new))
    status, _, err = told(capsys, "check")
    assert (status, told_of in err) == (2, True), err


def test_its_table_is_read_with_its_own_ways_of_access_only(file, capsys):
    file.write_text(FILE.replace('"ssh"', '"slurm"'))
    assert '[manners] is not used with `via = "slurm"`' in told(capsys, "check")[1]


def test_its_table_stands_in_new_files_in_the_schema_and_on_the_page(file, capsys):
    assert "#bows = 1" in told(capsys, "init", "--preset", "ncv6", "-o", "-")[1]
    assert "#bows" not in told(capsys, "init", "--preset", "lab", "-o", "-")[1]
    schema = json.loads(told(capsys, "schema", "cluster")[1])
    assert schema["$defs"]["Manners"]["properties"]["bows"]["maximum"] == 3
    assert "| `bows` | whole number, 0 to 3 | `1` | How deep to bow. |" in pages()["cluster-file.md"]


def test_its_limits_are_listed_with_the_value_of_the_cluster_file(file, place, capsys):
    status, out, _ = told(capsys, "limits", "bows")
    assert (status, " ".join(out.splitlines()[1].split())) == (0, f"{place.name} bows at least 2 custom manners.bows")
    assert len(json.loads(told(capsys, "limits", place.name, "--json")[1])["limits"]) == 1


def test_its_codes_are_explained(place, capsys):
    works(place)
    status, _, err = told(capsys, "wave", "twice")
    assert (status, "more     fairlead explain hello/no-arm" in err) == (2, True)
    assert "Grow one." in told(capsys, "explain", "hello/no-arm")[1]
    assert explanations()["hello/no-arm"].title == "There is no arm."


def test_its_runs_are_judged_again_by_its_own_rules(place, capsys):
    works(place)
    for word, verdict in (("hello", "pass"), ("boo", "fail")):
        folder = RunFolder.create(Path("runs"), "greet", [])
        folder.write("greeting.json", {"word": word})
        folder.finish({"verdict": "unknown", "findings": []}, verdict="unknown", exit_code=4)
        _, out, _ = told(capsys, "rejudge", folder.info.id)
        assert out.endswith(f"verdict  {verdict}\n")


def test_its_document_has_a_schema(place, capsys):
    works(place)
    status, out, _ = told(capsys, "schema", "greeting")
    assert (status, json.loads(out)["$defs"]["Greeting"]["properties"]["word"]["description"]) == (0, "The word.")


def test_its_line_stands_in_doctor(place, capsys):
    assert "hat" in names()
    assert (capability("hat").ok, capability("hat").get) == (False, "apt install hat")
    (line,) = [ln for ln in told(capsys, "doctor")[1].splitlines() if ln.startswith("hat ")]
    assert " ".join(line.split()) == "hat no greeting politely not installed: no-such-hat; apt install hat"


def test_its_page_is_written_with_the_others(place):
    from fairlead.cli.reference import every_page

    works(place)
    assert every_page()["greetings.md"] == "hello"


def test_it_is_gone_with_its_folder(place, monkeypatch):
    assert place.name in rooms.rooms()
    monkeypatch.setattr(fairlead, "__path__", fairlead.__path__[:-1])
    assert place.name not in rooms.rooms()
    assert "hello/no-arm" not in explanations()


def test_a_name_is_given_once(place):
    (place / "room.py").write_text(ROOM.replace("{name}", place.name).replace('"greet"', '"show"'))
    with pytest.raises(AssertionError, match="two rooms bring verbs of one name: show"):
        rooms.brought("verbs")


def test_a_folder_without_init_is_no_package_and_brings_nothing(place):
    (place / "__init__.py").unlink()
    assert place.name not in rooms.rooms()


FILES = sorted(Path(fairlead.__file__).parent.rglob("room.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda p: p.parent.name)
def test_a_room_file_is_light_and_what_it_names_is_there(file):
    imported = {n.module for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.ImportFrom)}
    assert imported == {"fairlead.base.rooms"}
    name = ".".join(file.relative_to(Path(fairlead.__file__).parent).parts[:-1])
    room = rooms.rooms()[name]
    targets = [item.target for item in (*room.verbs, *room.schemas, *room.tables) if item.target]
    targets += [line.look for line in room.doctor if line.look] + [verb.rejudge for verb in room.verbs if verb.rejudge]
    for target in [*targets, *room.pages, *room.limits]:
        assert callable(rooms.load(target)), target
    for line in room.doctor:
        assert sum(map(bool, (line.modules, line.programs, line.path, line.look))) == 1, line.name
        assert bool(line.get) != bool(line.extra), line.name
    assert all(verb.help or " " in verb.name for verb in room.verbs)


IMPORTED_AS = {"PyYAML": "yaml"}
"""Distributions whose module has another name."""


def test_every_extra_of_the_distribution_has_a_line():
    import tomllib

    project = tomllib.loads((Path(fairlead.__file__).parents[2] / "pyproject.toml").read_text())["project"]
    brought: dict[str, set[str]] = {}
    for line in rooms.brought("doctor"):
        if line.extra:
            brought.setdefault(line.extra, set()).update(line.modules)
    assert set(brought) | {"all"} == set(project["optional-dependencies"])
    for extra, modules in brought.items():
        texts = [text.partition(">")[0].strip() for text in project["optional-dependencies"][extra]]
        declared = {IMPORTED_AS.get(name, name) for name in (text.partition("[")[0] for text in texts)}
        # an extra of a distribution brings more than its name says
        is_met = declared <= modules if any("[" in text for text in texts) else declared == modules
        assert is_met, extra


def test_to_read_a_cluster_file_loads_no_room_beyond_its_table():
    code = "import sys; from fairlead.spec import preset; preset('lab'); print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {m for m in done.stdout.split() if m.startswith("fairlead.")}
    homes = {target.partition(":")[0] for table in rooms.brought("tables") for target in table[1:] if ":" in target}
    above = {m for m in loaded if m.split(".")[1] not in {"base", "errors", "records", "report", "spec"}}
    named = {n.module for m in homes for n in ast.walk(ast.parse(source_of(m))) if isinstance(n, ast.ImportFrom)}
    packages = {m.rpartition(".")[0] for m in homes | named if m}
    assert above <= homes | named | packages, "a table's module imports little itself"
    assert not {"asyncio", "subprocess", "numpy", "torch"} & set(done.stdout.split())


def source_of(module):
    return (Path(fairlead.__file__).parent / Path(*module.split(".")[1:])).with_suffix(".py").read_text()


def test_to_know_all_rooms_loads_none_of_them():
    code = "import sys; from fairlead.base.rooms import rooms; rooms(); print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {m for m in done.stdout.split() if m.startswith("fairlead")}
    assert loaded == {"fairlead", "fairlead.base", "fairlead.base.rooms"}
    assert not {"msgspec", "asyncio", "cyclopts"} & set(done.stdout.split())
