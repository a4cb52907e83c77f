"""The rules, by subject: pure functions from a node (and one part of it) to an Outcome. None of them catches Unread."""
