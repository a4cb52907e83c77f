"""Faults of a lab: a catalogue of kinds, what a set of faults asks of the lab, and carrying that out."""
