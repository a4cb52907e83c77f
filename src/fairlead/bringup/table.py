"""`[bringup]` in the cluster file: what its later stages work with."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct


class Bringup(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Stages of a bringup that need something to work with; in a lab, a tiny model is made where nothing is named."""

    weights: Annotated[str, Meta(examples=["hf://OWNER/MODEL@REVISION"])] = ""
    """What `weights spread` brings to every node. Empty: the stage is left out."""

    dest: Annotated[str, Meta(pattern="^/", examples=["/mnt/nvme/model"])] = "/var/lib/fairlead/model"
    """Where that goes, the same path on every node."""

    train: Annotated[str, Meta(examples=["train.toml"])] = ""
    """A configuration of `fairlead train`, some steps of which are trained on the nodes. Empty: left out."""

    steps: Annotated[int, Meta(ge=1)] = 3
    """How many."""

    model: Annotated[str, Meta(examples=["/share/model"])] = ""
    """What `serve run` serves on this machine for one question. Empty: left out."""

    engine: tuple[str, ...] = ()
    """Options for its engine, as they stand behind `--`: ["--tensor-parallel-size", "8"]."""

    ask: Annotated[str, Meta(min_length=1, max_length=4096)] = "What is a switch?"
    """That question."""
