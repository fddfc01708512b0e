"""Whether to trust a posterior: importance weights, missing mass, Stein's identities, R̂ and ESS, and a verdict.

May import: `methods` and all below it. Start reading at `diagnosis.py`, which puts the numbers together, then
`verdict.py`, which holds every threshold.
"""

from gpvi.diagnostics.diagnosis import Diagnosis as Diagnosis
from gpvi.diagnostics.two_sample import maximum_mean_discrepancy as maximum_mean_discrepancy
from gpvi.diagnostics.verdict import Verdict as Verdict
