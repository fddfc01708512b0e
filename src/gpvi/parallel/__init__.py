"""Several devices and several hosts: where arrays are placed, what each process reads, and how much memory is free.

May import: `_compute`, `_inputs`, `errors`, `specs`. Start reading at `mesh.py`.
"""
