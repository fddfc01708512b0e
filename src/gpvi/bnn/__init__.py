"""Bayesian neural networks: from a network and data to calibrated predictions.

May import: `training`, `posterior` and all below them. Start reading at `networks/network.py`, `model.py` (a network as
a target) and `training.py` (`gpvi.bnn.fit`).
"""

from typing import TYPE_CHECKING, Any

from gpvi.bnn.generators import generator as generator
from gpvi.bnn.generators import method as method
from gpvi.bnn.likelihoods import Bernoulli as Bernoulli
from gpvi.bnn.likelihoods import Categorical as Categorical
from gpvi.bnn.likelihoods import Flat as Flat
from gpvi.bnn.likelihoods import Gaussian as Gaussian
from gpvi.bnn.likelihoods import HalfCauchy as HalfCauchy
from gpvi.bnn.likelihoods import Heteroscedastic as Heteroscedastic
from gpvi.bnn.likelihoods import Likelihood as Likelihood
from gpvi.bnn.likelihoods import LogNormal as LogNormal
from gpvi.bnn.likelihoods import NoisePrior as NoisePrior
from gpvi.bnn.likelihoods import Poisson as Poisson
from gpvi.bnn.microcanonical import MCLMC as MCLMC
from gpvi.bnn.model import target as target
from gpvi.bnn.networks.architectures import lenet5 as lenet5
from gpvi.bnn.networks.architectures import mlp as mlp
from gpvi.bnn.networks.network import Network as Network
from gpvi.bnn.prediction.prediction import Prediction as Prediction
from gpvi.bnn.prediction.predictive import Predictive as Predictive
from gpvi.bnn.prediction.predictive import load as load
from gpvi.bnn.prediction.temperature_scaling import fit_sharpness as fit_sharpness
from gpvi.bnn.prediction.temperature_scaling import temperature_scaled as temperature_scaled
from gpvi.bnn.priors import FanIn as FanIn
from gpvi.bnn.priors import PerLayer as PerLayer
from gpvi.bnn.priors import Prior as Prior
from gpvi.bnn.priors import ScaleMixture as ScaleMixture
from gpvi.bnn.priors import Sparse as Sparse
from gpvi.bnn.priors import StandardNormal as StandardNormal
from gpvi.bnn.training import fit as fit
from gpvi.errors import require_extra

if TYPE_CHECKING:
    from gpvi.bnn.estimators import BayesianMLPClassifier as BayesianMLPClassifier
    from gpvi.bnn.estimators import BayesianMLPRegressor as BayesianMLPRegressor


def __getattr__(name: str) -> Any:
    """Import the scikit-learn estimators on first use, since scikit-learn is optional."""
    if name in ("BayesianMLPClassifier", "BayesianMLPRegressor"):
        require_extra("sklearn", "sklearn", f"gpvi.bnn.{name}")
        from gpvi.bnn import estimators

        return getattr(estimators, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
