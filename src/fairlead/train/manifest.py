"""What a store on disk has committed: the numbers of its last step, from which each update can be done again.

Must not know: files.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from fairlead.train.layout import Block
from fairlead.train.optimizer import SGD, AdamW, Moment, Rule


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What is committed. `steps` is 0 when there are only first weights."""

    steps: int
    run: str
    """What the state belongs to: see identity.py."""
    lr: float = 0.0
    clip: float = 1.0
    beta1: float = 0.0
    beta2: float = 0.0
    eps: float = 0.0
    momentum: float = 0.0
    nesterov: bool = False
    draw: int = 0
    """Of the last step, where parameters are bf16: see `Moment`."""
    kind: Literal["adamw", "sgd"] = "adamw"
    """Which of the hyper-parameters above count."""
    counts: dict[str, int] = {}
    """Updates of each parameter, with the last one."""
    seen: list[str] = []
    """Parameters that had a gradient in the last step."""
    gradients: list[int] = []
    """Digests by block."""
    frozen: list[int] = []
    """Digests of frozen parameters by block; none where an earlier version wrote the first weights."""
    by_page: bool = False
    """Whether digests weigh each page by its place, as those of earlier versions do not."""
    loss: float = 0.0
    grad_norm: float = 0.0
    """Of the last step."""
    before: tuple[float, float] = (0.0, 0.0)
    """Loss and norm of the step before the last."""
    nodes: list[str] = []
    """Of a store in several shards: where each lies."""

    def withdrawn(self) -> Manifest:
        """As it was a step earlier, when this one was not committed by all; there is nothing to do again then."""
        past = self.counts | {name: self.counts[name] - 1 for name in self.seen}
        return Manifest(
            steps=self.steps - 1,
            run=self.run,
            kind=self.kind,
            counts={name: num for name, num in past.items() if num},
            loss=self.before[0],
            grad_norm=self.before[1],
            nodes=self.nodes,
            frozen=self.frozen,
            by_page=self.by_page,
        )

    def moment(self, block: Block) -> Moment:
        """The last step's update of a block."""
        own = {param.name for param in block.params}
        counts = {name: self.counts[name] for name in self.seen if name in own}
        return Moment(self.lr, self.clip, self.rule, counts, self.draw)

    @property
    def rule(self) -> Rule:
        """The optimizer of the last step."""
        if self.kind == "sgd":
            return SGD(self.momentum, self.nesterov)
        return AdamW(self.lr, self.beta1, self.beta2, self.eps)


def words(rule: Rule) -> dict[str, Any]:
    """How a manifest says an optimizer."""
    if isinstance(rule, SGD):
        return {"kind": "sgd", "momentum": rule.momentum, "nesterov": rule.nesterov}
    return {"kind": "adamw", "beta1": rule.beta1, "beta2": rule.beta2, "eps": rule.eps}
