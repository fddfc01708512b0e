"""What training returns: draws, densities, summaries, diagnoses, ArviZ and files.

May import: `diagnostics` and all below it. Start reading at `posterior.py`.
"""

from gpvi.posterior.history import Training as Training
from gpvi.posterior.posterior import Posterior as Posterior
from gpvi.posterior.posterior import load as load
from gpvi.posterior.start import Start as Start
from gpvi.posterior.summary import Summary as Summary
