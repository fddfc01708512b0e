"""The paper's claims as checks: each is computed from records, and holds, does not hold or cannot be decided.

Start reading at `base.py`, what a claim is and how it is judged, then `statements.py`, the list. `page.py` writes it as
a page of the documentation.
"""

from gpvi_paper.claims.base import Claim as Claim
from gpvi_paper.claims.base import Judged as Judged
from gpvi_paper.claims.base import judge as judge
from gpvi_paper.claims.statements import claims as claims
