"""The offline proof: a server in a network without a way out, real questions to it, and a record of whom it called."""
