"""What posteriors over networks predict: averages over draws, intervals, temperature scaling, and their files.

Start reading at `predictive.py`.
"""

from gpvi.bnn.prediction.predictive import Prediction as Prediction
from gpvi.bnn.prediction.predictive import Predictive as Predictive
from gpvi.bnn.prediction.predictive import load as load
