"""Whether to trust a posterior: importance weights, missing mass, Stein's identities, R̂ and ESS, and a verdict.

May import: `methods` and all below it. Start reading at `diagnosis.py`, which puts the numbers together, then
`verdict.py`, which holds every threshold.
"""
