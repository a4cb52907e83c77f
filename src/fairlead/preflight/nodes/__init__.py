"""One node by itself: asked by the gate, by its own prolog, and over the days."""
