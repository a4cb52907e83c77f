"""What the bringup brings beside its verb."""

from fairlead.base.rooms import Room, Table

ROOM = Room(tables=(Table("bringup", "fairlead.bringup.table:Bringup"),))
