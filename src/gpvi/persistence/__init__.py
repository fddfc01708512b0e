"""Files: written whole or not at all, bounded before they are read, locked while in use. Nothing read is executed.

`format` is the layout of every saved posterior and checkpoint; what they mean is known to `gpvi.posterior.saving` and
`gpvi.training.checkpoint`. May import: `errors`. Start reading at `format.py`.
"""
