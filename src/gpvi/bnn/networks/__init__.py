"""Networks as functions of a flat vector of weights: built in, from Equinox, from Flax, or from two functions.

Start reading at `network.py`.
"""

from gpvi.bnn.networks.architectures import lenet5 as lenet5
from gpvi.bnn.networks.architectures import mlp as mlp
from gpvi.bnn.networks.network import Network as Network
