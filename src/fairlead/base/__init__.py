"""Small tools every room may use: node sets, units, files, processes, plain tables. Standard library only."""
