"""The command line: one file a verb, thin: parse, call, print."""
