"""A model served where nothing leads outside: bundles, and the proof that a server calls nobody."""
