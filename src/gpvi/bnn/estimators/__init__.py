"""Bayesian multi-layer perceptrons as scikit-learn estimators.

Start reading at `regressor.py`; `_base.py` has what both share.
"""

from gpvi.bnn.estimators.classifier import BayesianMLPClassifier as BayesianMLPClassifier
from gpvi.bnn.estimators.regressor import BayesianMLPRegressor as BayesianMLPRegressor
