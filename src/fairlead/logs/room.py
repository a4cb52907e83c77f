"""What the logs bring."""

from fairlead.base.rooms import Doctor, Room, Table, Verb

ROOM = Room(
    verbs=(
        Verb("logs", "", "Every node's logs in one store, questions in KQL.", 180),
        Verb("logs collect", "fairlead.cli.logs_collect:collect"),
        Verb("logs serve", "fairlead.cli.logs_serve:serve"),
        Verb("logs import", "fairlead.cli.logs_import:import_"),
        Verb("logs export", "fairlead.cli.logs_export:export_"),
        Verb("logs diagnose", "fairlead.cli.logs_diagnose:diagnose_"),
        Verb("logs query", "fairlead.cli.logs:query"),
    ),
    tables=(Table("logs", "fairlead.logs.table:Logs", rules="fairlead.logs.table:rules"),),
    pages=("fairlead.logs.kql.reference:pages",),
    doctor=(
        Doctor(
            "chdb",
            "logs in a store of this machine; Parquet; a prompt",
            extra="logs",
            modules=("aiohttp", "chdb", "prompt_toolkit", "pyarrow"),
        ),
    ),
)
