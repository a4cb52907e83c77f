"""What the records bring: their JSON Schemas."""

from fairlead.base.rooms import Room, Schema

ROOM = Room(
    schemas=(
        Schema("finding", "one judged statement", "fairlead.records.finding:Finding"),
        Schema("facts", "what a probe read on one node", "fairlead.records.facts:NodeFacts"),
        Schema("run", "the head of a run folder", "fairlead.records.runs:RunInfo"),
        Schema("event", "something that happened: a line of log.jsonl", "fairlead.records.event:Event"),
        Schema("limit", "one number that judges", "fairlead.records.limit:Limit"),
        Schema("address-book", "where every node is", "fairlead.records.addressbook:AddressBook"),
        Schema("place", "what a node's own file says of its place", "fairlead.records.addressbook:Place"),
        Schema("explanation", "what a code means", "fairlead.records.codes:Explanation"),
    ),
)
