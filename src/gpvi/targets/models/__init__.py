"""Models behind a target: a flat vector x ∈ R^d as what its user named and constrained.

Start reading at `model.py`, which says what a target asks of its model; each language has a module of its own.
"""
