"""Methods: frozen specifications with `init` and `step`, which `gpvi.fit` compiles and repeats.

May import: `targets`, `exploration`, `generators`, `solvers`, `directions` and all below them. Start reading at
`base.py` (the contract), then `gpvi.py` (Algorithm 1).
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from gpvi.errors import InputError, UnknownOptionError, brief
from gpvi.methods.base import About as About
from gpvi.methods.base import Learner as Learner
from gpvi.methods.base import Method as Method
from gpvi.methods.base import State as State
from gpvi.methods.carriers import Particles as Particles
from gpvi.methods.ensemble import DeepEnsemble as DeepEnsemble
from gpvi.methods.gpvi import GPVI as GPVI
from gpvi.methods.mcmc import HMC as HMC
from gpvi.methods.mcmc import NUTS as NUTS
from gpvi.methods.particle import GFSD as GFSD
from gpvi.methods.particle import GFSF as GFSF
from gpvi.methods.particle import KSD as KSD
from gpvi.methods.particle import SVGD as SVGD
from gpvi.methods.particle import AmortizedGFSD as AmortizedGFSD
from gpvi.methods.particle import AmortizedGFSF as AmortizedGFSF
from gpvi.methods.particle import AmortizedKSD as AmortizedKSD
from gpvi.methods.particle import AmortizedMethod as AmortizedMethod
from gpvi.methods.particle import AmortizedSVGD as AmortizedSVGD
from gpvi.methods.particle import Annealing as Annealing
from gpvi.methods.particle import ParticleMethod as ParticleMethod
from gpvi.methods.pathfinder import Pathfinder as Pathfinder
from gpvi.methods.schedules import decaying as decaying
from gpvi.methods.schedules import decaying_adam as decaying_adam
from gpvi.methods.smc import SMC as SMC
from gpvi.methods.variational import FullRankVI as FullRankVI
from gpvi.methods.variational import MeanFieldVI as MeanFieldVI
from gpvi.methods.variational import NormalizingFlow as NormalizingFlow
from gpvi.specs import hyphenated

METHODS: tuple[type[Method], ...] = (
    GPVI,
    NormalizingFlow,
    FullRankVI,
    MeanFieldVI,
    Pathfinder,
    SVGD,
    GFSF,
    GFSD,
    KSD,
    AmortizedSVGD,
    AmortizedGFSF,
    AmortizedGFSD,
    AmortizedKSD,
    DeepEnsemble,
    HMC,
    NUTS,
    SMC,
)
"""The library's methods, in the order of the table in docs/choosing.md."""
SHORT_NAMES = {"mfvi": "mean-field-vi", "ensemble": "deep-ensemble", "flow": "normalizing-flow"}
"""Names that are used beside those of the classes."""


def method_name(name: str) -> str:
    """Return the hyphenated name of a method, however it is written.

    Parameters
    ----------
    name
        Its class, its hyphenated name or a short one. Case, hyphens, underscores and spaces do not matter.

    Returns
    -------
    str
        Such as "mean-field-vi" for "MeanFieldVI", "mean_field_vi" and "mfvi".

    Raises
    ------
    gpvi.errors.UnknownOptionError
        If there is no such method.

    Examples
    --------
    >>> gpvi.methods.method_name("MeanFieldVI"), gpvi.methods.method_name("mfvi")
    ('mean-field-vi', 'mean-field-vi')
    """
    names = [hyphenated(kind.__name__) for kind in METHODS]
    known = {_plain(each): each for each in names} | SHORT_NAMES
    if _plain(name) not in known:
        raise UnknownOptionError("method", name, [*names, *SHORT_NAMES])
    return known[_plain(name)]


def as_method(method: Any, makers: Mapping[str, Callable[[], Method]] | None = None) -> Method:
    """Return a method as it is, and a name as the method with its default options.

    Parameters
    ----------
    method
        An object such as `gpvi.NUTS()`, or a name that `method_name` knows.
    makers
        What makes the method of each hyphenated name; by default its class.

    Returns
    -------
    Method
        The method.

    Raises
    ------
    gpvi.errors.InputError
        If there is no method of this name, or it is neither a name nor a method.

    Examples
    --------
    >>> gpvi.methods.as_method("svgd") == gpvi.SVGD()
    True
    """
    if isinstance(method, str):
        makers = {hyphenated(kind.__name__): kind for kind in METHODS} if makers is None else makers
        return makers[method_name(method)]()
    if isinstance(method, type) or not isinstance(method, Method):
        raise InputError(
            f"method is {brief(method)}; pass a name such as 'nuts', or a method with its options, such as "
            "gpvi.GPVI(). A class of your own must be a subclass of gpvi.methods.Method."
        )
    return method


def _plain(name: str) -> str:
    return re.sub(r"[-_ ]", "", name.lower())
