"""What the simulator brings."""

from fairlead.base.rooms import Room, Verb

ROOM = Room(verbs=(Verb("fabric sim", "fairlead.cli.fabric:sim", ""),), pages=("fairlead.fabric.sim.reference:pages",))
