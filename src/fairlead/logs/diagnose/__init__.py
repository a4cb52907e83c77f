"""Why a job died: from lines of logs to the cause, its node, and what only followed from it."""
