"""What the faces of records bring."""

from fairlead.base.rooms import Doctor, Room

ROOM = Room(
    doctor=(
        Doctor("chromium", "checking the HTML report in a browser", "apt install chromium", programs=("chromium",)),
    ),
)
