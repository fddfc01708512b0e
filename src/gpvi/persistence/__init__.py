"""Files: replaced atomically, bounded before they are read, and locked while in use. Nothing that is read is executed.

`format` reads and writes the file of every saved posterior and checkpoint. What such a file means is known to
`gpvi.posterior.saving` and `gpvi.training.checkpoint`. May import: `errors`. Start reading at `format.py`.
"""
