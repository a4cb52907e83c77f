"""The rank phase: one process a GPU, collectives with known answers, and what they show."""
