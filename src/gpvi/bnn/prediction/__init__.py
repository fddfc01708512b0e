"""What a posterior over networks predicts: moments, quantiles, temperature scaling, and its files.

Start reading at `predictive.py`; `_mixture.py` has the formulas.
"""

from gpvi.bnn.prediction.prediction import Prediction as Prediction
from gpvi.bnn.prediction.predictive import Predictive as Predictive
from gpvi.bnn.prediction.predictive import load as load
