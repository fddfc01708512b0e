"""From a target and a method to a posterior: the start, the compiled chunks of steps, stopping, and checkpoints.

May import: `posterior`, `initialization` and all below them. Start reading at `fit.py`, then `loop.py` (the only
training loop) and `stopping.py` (when it ends).
"""
