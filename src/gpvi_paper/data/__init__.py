"""Readers of the data that experiments need: none are shipped, and nothing in a file is executed.

Start reading at `files.py`, which all of them share, then at a reader, such as `mnist.py`. `download.py` fetches the
image sets.
"""
