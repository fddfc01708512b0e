"""What the machine can do at most, and how far a step is from it, on one device and on many.

Start reading at `ceilings.py`, then `roofline.py` (one device) and `scaling.py` (many).
"""
