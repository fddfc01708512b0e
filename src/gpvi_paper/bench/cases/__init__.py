"""What is timed: steps, draws, predictions, start-up and memory, beside other libraries and own baselines.

Start reading at `particles.py`. Each module has a function of a `Setting` that yields `Result`s.
"""
