"""Every field has its sentence; schema and reference pages are made from them and are fresh."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import fairlead.spec
from fairlead.records.codes import explanations
from fairlead.spec.contract import Contract
from fairlead.spec.docs import json_schema, sentences, structs
from fairlead.spec.reference import pages
from fairlead.spec.tables import spec_type, tables
from fairlead.spec.vmsize import VmSize

ROOT = Path(fairlead.__file__).parents[2]
ROOM = Path(fairlead.__file__).parent / "spec"


@pytest.mark.parametrize("struct", structs(spec_type()), ids=lambda s: s.__name__)
def test_every_field_has_a_sentence(struct: type) -> None:
    said = sentences(struct)
    assert said.whole.endswith(".")
    of_rooms = {t.name for t in tables()}
    known = {"cluster", "pools", "fabric", "access", "waivers", "runs", "expects"} | of_rooms
    for field in msgspec.structs.fields(struct):
        if struct is not spec_type() or field.name not in known:
            assert said.fields[field.name].rstrip('"').endswith((".", "...", ":")), (struct.__name__, field.name)


def test_sentences_of_a_struct_with_a_base() -> None:
    said = sentences(Contract).fields
    assert said["memlock_gib"].startswith("Least memory")
    assert said["gpus"] == sentences(VmSize).fields["gpus"]


def test_json_schema() -> None:
    schema = json_schema()
    json.dumps(schema)
    assert schema["$schema"].endswith("2020-12/schema")
    pool = schema["$defs"]["Pool"]
    assert pool["additionalProperties"] is False
    assert pool["required"] == ["name", "size", "nodes"]
    assert pool["properties"]["nodes"]["type"] == "string"
    assert pool["properties"]["gpus"]["description"] == "GPUs of each node; left out, as the VM size says."
    assert set(schema["$defs"]["Spec"]["properties"]) >= {"pool", "waiver", "expect", "access"}


def test_the_page_names_every_key_and_preset() -> None:
    page = pages()["cluster-file.md"]
    for struct in structs(spec_type()):
        for field in msgspec.structs.fields(struct):
            assert f"`{field.encode_name}`" in page or f"[{field.encode_name}]" in page


def test_every_code_has_an_explanation_and_every_explanation_a_use() -> None:
    used: set[str] = set()
    for file in [*ROOM.glob("*.py"), ROOM.parent / "cli" / "init.py"]:
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("spec/"):
                used.add(node.value)
    used = {code for code in used if " " not in code and "." not in code}
    assert used == {code for code in explanations() if code.startswith("spec/")}


def test_the_room_is_light() -> None:
    """Names load when first used: topology alone brings neither msgspec nor the sizes."""
    code = "import sys, fairlead.spec, fairlead.spec.topology; print('msgspec' in sys.modules, 'numpy' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == ["False", "False"]
    code = "import sys, fairlead.spec.loader\nprint([m for m in ('numpy', 'cyclopts', 'asyncio') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


def test_all_names_of_the_room_load_and_no_file_hides_one() -> None:
    """A module of the same name as a function would replace it as soon as anybody imports the module."""
    code = (
        "import importlib, pathlib, types, fairlead.spec as spec\n"
        "for file in pathlib.Path(spec.__file__).parent.glob('[a-z]*.py'):\n"
        "    importlib.import_module('fairlead.spec.' + file.stem)\n"
        "print([n for n in spec.__all__ if isinstance(getattr(spec, n), types.ModuleType)])\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"
    with pytest.raises(AttributeError):
        fairlead.spec.nothing  # noqa: B018
