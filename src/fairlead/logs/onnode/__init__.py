"""The program that collects on a node: one file of standard library in Python 3.9, made of these parts."""
