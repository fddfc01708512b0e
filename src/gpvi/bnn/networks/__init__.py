"""Networks as flat vectors of weights: this library's own, and those of Equinox, Flax and plain functions.

Start reading at `network.py`.
"""

from gpvi.bnn.networks.architectures import lenet5 as lenet5
from gpvi.bnn.networks.architectures import mlp as mlp
from gpvi.bnn.networks.network import Network as Network
