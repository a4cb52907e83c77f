"""What planning brings."""

from fairlead.base.rooms import Doctor, Room, Table, Verb

ROOM = Room(
    verbs=(
        Verb(
            "plan",
            "fairlead.cli.plan:plan",
            "VM size and network, with reasons; the files that follow; lint.",
            110,
        ),
    ),
    tables=(Table("plan", "fairlead.plan.table:PlanTable", rules="fairlead.plan.table:rules"),),
    limits=("fairlead.plan.choice.need:limits",),
    doctor=(Doctor("yaml", "manifests: plan, plan --lint", extra="plan", modules=("yaml",)),),
)
