"""Specifications: values that survive JSON, compare and hash, and refuse what they do not know."""

import dataclasses
import json
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpvi
from gpvi import bnn, errors, specs
from gpvi.directions import Direction, GFSDDirection, GFSFDirection, KSDDirection, SVGDDirection
from gpvi.generators import (
    MLP,
    AffineFlow,
    Autoregressive,
    Copula,
    Diagonal,
    FullRank,
    Generator,
    Linear,
    Mixture,
    Planar,
    Residual,
    SplineFlow,
    Triangular,
)
from gpvi.kernels import IMQ, RBF, Bandwidth, Fixed, Kernel, Median, Noise, OnNoise
from gpvi.methods import Annealing, Method
from gpvi.solvers import Solver
from gpvi.solvers.block import Block
from gpvi.solvers.dense import Dense
from gpvi.solvers.helper import Helper
from gpvi.solvers.iterative import Iterative
from gpvi.solvers.least_squares import LeastSquares
from gpvi.supports import Above, Below, Interval, Ordered, Positive, Real, Simplex, Supports
from gpvi_paper.experiments.energy import WideNoise
from gpvi_paper.experiments.images.digits import NoEntropy
from gpvi_paper.experiments.reference.peers import NumPyroGuide, NumPyroNUTS

EXAMPLES: list[Any] = [
    Median(0.5),
    Noise(2.0),
    Fixed(0.3),
    RBF(Fixed(2.0)),
    RBF(0.7),
    IMQ("noise"),
    OnNoise("full", IMQ(3.0)),
    Block(),
    Dense(),
    Iterative("gmres", 1e-4, 7),
    Helper(17, 2e-4),
    LeastSquares(1e-3),
    NoEntropy(),
    SVGDDirection(IMQ()),
    GFSDDirection("imq"),
    GFSFDirection(RBF(1.0), 0.5),
    KSDDirection(12, 2, 3.0, 1e-2, 4, 5),
    AffineFlow(0.5),
    SplineFlow(2, 4, 3.0, 6, 2, 0.5),
    Linear(),
    MLP((3, 4), "tanh"),
    Residual(2, (5,), "gelu", 0.05, True),
    Triangular(2, SplineFlow(3), (), "silu", 0.1, "conditional"),
    Diagonal(0.1),
    Copula(),
    FullRank(0.2),
    Planar(4),
    Mixture(3, FullRank(0.2)),
    WideNoise(FullRank(), 2.0),
    Autoregressive(2, 6, 2),
    Annealing(100, 4, 2.0),
    gpvi.NormalizingFlow(Planar(3), "l2", 5, 0.1, "rmsprop"),
    gpvi.FullRankVI("pathwise", 5, 0.1, "rmsprop", 0.3),
    gpvi.MeanFieldVI("pathwise", 5, 0.1, "rmsprop", 0.3, True),
    gpvi.Pathfinder(3, 20, 5, 50),
    gpvi.DeepEnsemble(3, 0.2),
    gpvi.HMC(2, 30, 40, 3, 0.1, acceptance=0.4, leapfrogs=5, jitter=0.2),
    gpvi.NUTS(2, 30, 40, 3, acceptance=0.45, mass="dense", max_doublings=5),
    gpvi.SMC(3, 20, 0.4, 50),
    bnn.MCLMC(3, 20, 80, 5, 0.2, 0.5),
    gpvi.GPVI(Residual(1), "functional", Helper(9), OnNoise("full"), 11, 1, learning_rate=0.1),
    gpvi.SVGD(particles=7, learning_rate=0.3, kernel=IMQ(2.0)),
    gpvi.GFSD(particles=7, learning_rate=0.3, kernel="imq"),
    gpvi.GFSF(particles=7, learning_rate=0.3, kernel=RBF("noise"), ridge=0.1),
    gpvi.KSD(particles=7, learning_rate=0.3, critic=KSDDirection(5)),
    gpvi.AmortizedSVGD(Linear(), particles=9, learning_rate=0.2, kernel=IMQ()),
    gpvi.AmortizedGFSD(MLP((3,)), particles=9, learning_rate=0.2, kernel="imq"),
    gpvi.AmortizedGFSF(Residual(), particles=9, learning_rate=0.2, kernel=IMQ(), ridge=0.4),
    gpvi.AmortizedKSD(
        Triangular(head="affine"), particles=9, learning_rate=0.2, critic=KSDDirection(6)
    ),
    NumPyroNUTS(2, 30, 40),
    NumPyroGuide("AutoNormal", 20, 3),
    bnn.StandardNormal(0.5),
    bnn.FanIn(1.4, 0.5),
    bnn.PerLayer((0.5, 2.0)),
    bnn.Sparse(1.0, 1.5, 0.3, 0.05),
    bnn.ScaleMixture(0.25, 2.0, 0.05),
    bnn.Gaussian(bnn.HalfCauchy(0.5), 0.1),
    bnn.HalfCauchy(2.0),
    bnn.LogNormal(0.1, 0.5),
    bnn.Flat(),
    bnn.Heteroscedastic(1e-2),
    bnn.Categorical(),
    bnn.Bernoulli(),
    bnn.Poisson(),
    Real(3),
    Positive((2, 3)),
    Above(1.5, 2),
    Below(-0.5, 2),
    Interval(-1.0, 2.5, 4),
    Simplex(3, 2),
    Ordered(4, (1, 2)),
    Supports(("a", "b"), (Positive(2), Simplex(3))),
]
FIELDLESS = {
    "Copula",
    "NoEntropy",
    "Block",
    "Dense",
    "Linear",
    "Flat",
    "Categorical",
    "Bernoulli",
    "Poisson",
}


def ids(example):
    return type(example).__name__


def test_every_registered_specification_has_an_example_away_from_its_defaults():
    ours = {
        name
        for name, cls in specs._registry.items()
        if cls.__module__.startswith(("gpvi.", "gpvi_paper."))
    }
    assert {type(example).__name__ for example in EXAMPLES} == ours
    for example in EXAMPLES:
        changed = [
            field.name
            for field in dataclasses.fields(example)
            if getattr(example, field.name) != field.default
        ]
        assert changed or ids(example) in FIELDLESS


@pytest.mark.parametrize("example", EXAMPLES, ids=ids)
def test_round_trip_through_text(example):
    again = specs.from_json(json.loads(json.dumps(specs.to_json(example))))
    assert type(again) is type(example)
    assert again == example
    assert hash(again) == hash(example)
    assert repr(again) == repr(example)


@pytest.mark.parametrize("example", EXAMPLES, ids=ids)
def test_frozen_and_unequal_to_a_changed_one(example):
    for field in dataclasses.fields(example):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(example, field.name, None)
        if isinstance(getattr(example, field.name), float) or field.name == "particles":
            changed = dataclasses.replace(example, **{field.name: 2 * getattr(example, field.name)})
            assert changed != example


def documents(name, **fields):
    return st.fixed_dictionaries({"type": st.just(name), **fields})


positive = st.floats(1e-6, 1e6)
counts = st.integers(1, 10**9)
sizes = st.none() | st.integers(1, 9)
network = {
    "hidden": st.lists(st.integers(1, 99), max_size=3),
    "activation": st.sampled_from(["relu", "tanh", "gelu", "silu", "identity"]),
}
head_documents = st.sampled_from(["affine", "spline"]) | documents(
    "SplineFlow",
    layers=counts,
    knots=st.integers(1, 99),
    interval=st.floats(0.1, 1e6),
    width=counts,
    depth=counts,
)
generator_documents = (
    documents("Linear")
    | documents("MLP", **network)
    | documents("Residual", latent=sizes, **network, scale=positive, learn_scale=st.booleans())
    | documents(
        "Triangular",
        latent=sizes,
        head=head_documents,
        **network,
        scale=positive,
        scale_form=st.sampled_from(["constant", "conditional"]),
    )
)
bandwidths = positive | st.sampled_from(["median", "noise"]) | documents("Median", factor=positive)
kernel_documents = documents("RBF", bandwidth=bandwidths) | documents("IMQ", bandwidth=bandwidths)
method_documents = (
    documents(
        "GPVI",
        generator=generator_documents,
        gradient=st.sampled_from(["pathwise", "l2"]),
        particles=st.none() | counts,
        learning_rate=positive,
    )
    | documents(
        "GPVI",
        generator=generator_documents,
        gradient=st.just("functional"),
        solver=st.sampled_from(["block", "dense", "gmres"])
        | documents("Iterative", algorithm=st.just("gmres"), tolerance=positive, max_steps=sizes),
        kernel=st.sampled_from(["head", "full"]) | kernel_documents,
        particles=st.none() | counts,
        batches=st.integers(1, 2),
        pathwise_share=st.none() | st.floats(0, 1),
        learning_rate=positive,
    )
    | documents(
        "AmortizedGFSF",
        generator=generator_documents,
        particles=counts,
        learning_rate=positive,
        kernel=kernel_documents,
        ridge=positive,
    )
)


def assert_holds(whole, part):
    if not isinstance(part, dict):
        assert whole == part
        return
    for name, value in part.items():
        assert_holds(whole[name], value)


@settings(max_examples=60)
@given(method_documents)
def test_round_trip_of_any_method(document):
    """Nothing that a document says is dropped or changed on the way."""
    method = specs.from_json(document)
    assert_holds(specs.to_json(method), document)
    assert specs.from_json(specs.to_json(method)) == method
    assert specs.from_json(document) == method
    assert hash(specs.from_json(document)) == hash(method)


@pytest.mark.parametrize(
    "document",
    [
        {"type": "os.system"},
        {"type": "Sgvd"},
        {"type": None},
        {"type": ["GPVI"]},
        {},
        {"type": "GPVI", "generator": {"type": "Path"}},
    ],
)
def test_unknown_names_are_refused(document):
    with pytest.raises(errors.StorageError, match="does not know"):
        specs.from_json(document)


@pytest.mark.parametrize(
    "document",
    [
        {"type": "SVGD", "partciles": 3},
        {"type": "SVGD", "particles": -3},
        {"type": "SVGD", "particles": "many"},
        {"type": "SVGD", "kernel": "rfb"},
        {"type": "Fixed"},
        {"type": "RBF", "bandwidth": []},
        {"type": "GPVI", "gradient": "l2", "solver": "helper"},
        {"type": "GPVI", "solver": "blokc"},
        {"type": "MLP", "hidden": [3.5]},
        {"type": "Triangular", "head": {"type": "Linear"}},
    ],
    ids=str,
)
def test_invalid_fields_are_refused_as_damage(document):
    with pytest.raises(errors.StorageError, match="invalid"):
        specs.from_json(document)


class Custom:
    """What a user may pass, and JSON cannot hold."""


@pytest.mark.parametrize("value", [Custom(), [1, Custom()], lambda x: x, {1: 2}, 1j])
def test_custom_objects_are_refused(value):
    with pytest.raises(errors.InputError, match="cannot be saved"):
        specs.to_json(value)


def test_an_impostor_with_a_registered_name_is_refused():
    impostor = dataclasses.make_dataclass("SVGD", [("particles", int, 3)])
    with pytest.raises(errors.InputError, match="cannot be saved"):
        specs.to_json(impostor())


# ------------------------------------------------------------------------- classes of a user's own


@pytest.fixture
def registry(monkeypatch):
    """A registry that forgets what a test defines."""
    monkeypatch.setattr(specs, "_registry", dict(specs._registry))


def define(name: str, base: type = object, module: str = "mine", **members: Any) -> Any:
    """A class of a user's module."""
    return specs.spec(type(name, (base,), {"__module__": module, **members}))


def sized(**members: Any) -> dict[str, Any]:
    return {"__annotations__": {"size": int}, "size": 3, **members}


def test_a_class_of_your_own_goes_through_text(registry):
    own = define("Own", **sized())
    nested = gpvi.SVGD(kernel=define("OwnKernel", Kernel, profile=lambda self, s, h: (s, s))(0.5))
    for value in (own(7), nested):
        assert specs.from_json(json.loads(json.dumps(specs.to_json(value)))) == value
    with pytest.raises(errors.UnknownOptionError, match="Did you mean 'size'"):
        own(sise=3)


def test_a_class_that_is_not_known_is_named_with_the_remedy(registry, monkeypatch):
    document = specs.to_json(define("Own", **sized())(7))
    del specs._registry["Own"]
    with pytest.raises(
        errors.StorageError, match=r"names the class 'Own'.*import the module.*classes="
    ):
        specs.from_json(document)
    own = dataclasses.make_dataclass("Own", [("size", int)], frozen=True)
    assert specs.from_json(document, specs.known_classes([own])) == own(7)
    assert "Own" not in specs._registry, "what is given counts for one file"


def test_names_of_the_library_are_taken(registry):
    with pytest.raises(
        errors.InputError, match=r"mine\.SVGD has the name of gpvi\.methods.*rename"
    ):
        define("SVGD")
    assert specs._registry["SVGD"] is gpvi.SVGD
    impostor = dataclasses.make_dataclass("SVGD", [("particles", int, 3)])
    with pytest.raises(errors.InputError, match="of this library"):
        specs.known_classes([impostor])


def test_a_name_belongs_to_the_module_that_defines_it_first(registry):
    first = define("Own", **sized())
    with pytest.raises(errors.InputError, match=r"other\.Own has the name of mine\.Own.*rename"):
        define("Own", module="other", **sized())
    assert specs._registry["Own"] is first
    again = define("Own", **sized(size=4))
    assert specs.from_json({"type": "Own"}) == again(4), "as when a notebook's cell is run again"
    assert specs.from_json(specs.to_json(first(5))) == again(5), "older objects can be saved"


def test_classes_that_are_given_come_first_and_must_differ_by_name(registry):
    define("Own", **sized())
    given = define("Own", **sized(size=9))
    define("Own", **sized(size=4))
    assert specs.from_json({"type": "Own"}, specs.known_classes([given])) == given(9)
    other = dataclasses.make_dataclass("Own", [("size", int, 3)])
    with pytest.raises(errors.InputError, match="rename"):
        specs.known_classes([given, other])
    for wrong in (given(), "Own", Custom):
        with pytest.raises(errors.InputError, match=r"gpvi\.specs\.spec"):
            specs.known_classes([wrong])


def test_only_a_subclass_is_accepted_and_the_message_names_the_base():
    lookalike: Any = type(
        "Lookalike", (), {"profile": lambda self, squares, h: (squares, squares)}
    )()
    with pytest.raises(errors.InputError, match=r"subclass of gpvi\.kernels\.Kernel"):
        gpvi.SVGD(kernel=lookalike)
    with pytest.raises(errors.InputError, match=r"subclass of gpvi\.generators\.Generator"):
        gpvi.GPVI(generator=lookalike)
    with pytest.raises(errors.InputError, match=r"subclass of gpvi\.solvers\.Solver"):
        gpvi.GPVI(solver=lookalike)


@pytest.mark.parametrize("base", [Generator, Kernel, Bandwidth, Direction, Solver, Method])
def test_an_unfinished_subclass_is_refused_by_python(base, registry):
    with pytest.raises(TypeError, match="abstract"):
        define("Unfinished", base)()


# ------------------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("make", "nearest"),
    [
        (lambda: gpvi.GPVI(gradeint="l2"), "'gradient'"),  # pyright: ignore
        (lambda: gpvi.GPVI(gradient="pathwse"), "'pathwise'"),  # pyright: ignore
        (lambda: gpvi.GPVI(solver="blok"), "'block'"),
        (lambda: gpvi.GPVI(kernel="haed"), "'head'"),
        (lambda: gpvi.SVGD(particle=3), "'particles'"),  # pyright: ignore
        (lambda: gpvi.SVGD(kernel="rfb"), "'rbf'"),
        (lambda: RBF("medain"), "'median'"),
        (lambda: Triangular(head="splin"), "'spline'"),
        (lambda: Triangular(scale_form="conditionl"), "'conditional'"),
        (lambda: MLP(activation="rleu"), "'relu'"),
        (lambda: Iterative("gmers"), "'gmres'"),  # pyright: ignore
        (lambda: OnNoise("ful"), "'full'"),  # pyright: ignore
    ],
)
def test_unknown_options_name_the_nearest(make, nearest):
    with pytest.raises(errors.UnknownOptionError, match=f"Did you mean {nearest}"):
        make()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Residual(scale=0.0), ("scale", "0.0", "> 0", "0.05")),
        (lambda: Residual(scale=-1.0), ("scale", "-1.0", "> 0")),
        (lambda: Triangular(scale=float("nan")), ("scale", "nan", "> 0")),
        (lambda: gpvi.GPVI(particles=0), ("particles", "0", "≥ 1", "100")),
        (lambda: gpvi.GPVI(batches=3), ("batches", "3", "1", "2")),
        (lambda: gpvi.SVGD(particles=-5), ("particles", "-5", "≥ 1")),
        (lambda: gpvi.SVGD(particles=2.5), ("particles", "2.5", "whole number")),  # pyright: ignore
        (lambda: gpvi.GPVI(learning_rate=-1.0), ("learning_rate", "-1.0", "> 0")),
        (lambda: gpvi.GFSF(ridge=0.0), ("ridge", "0.0", "1e-2")),
        (lambda: KSDDirection(penalty=0.0), ("penalty", "0.0")),
        (lambda: Helper(width=0), ("width", "0")),
        (lambda: Iterative(tolerance=0.0), ("tolerance", "0.0")),
        (lambda: Fixed(0.0), ("bandwidth", "0.0", "median")),
        (lambda: RBF(0.0), ("bandwidth", "0.0")),
        (lambda: MLP((0,)), ("hidden", "(0,)", "(64, 64)")),
        (lambda: SplineFlow(layers=0), ("layers", "0")),
        (lambda: SplineFlow(layers=2.5), ("layers", "2.5", "whole number")),  # pyright: ignore
        (lambda: SplineFlow(depth=-1), ("depth", "-1", "whole number")),
        (lambda: Iterative(max_steps=-1), ("max_steps", "-1", "whole number")),
        (lambda: gpvi.GPVI(solver=Helper), ("solver", "Helper'>", "'block'", "Block()")),  # pyright: ignore
        (lambda: gpvi.GPVI(solver=3), ("solver is 3", "'helper'")),  # pyright: ignore
        (lambda: gpvi.GPVI(kernel=3), ("kernel is 3", "'head'")),  # pyright: ignore
        (lambda: gpvi.GPVI(generator=Residual), ("generator is", "Residual(…)")),  # pyright: ignore
        (lambda: gpvi.GPVI(generator="residual"), ("generator is 'residual'", "Residual(…)")),  # pyright: ignore
        (lambda: gpvi.AmortizedSVGD(generator=Residual), ("generator", "Residual(…)")),  # pyright: ignore
        (lambda: OnNoise("head", "rbf"), ("kernel on the noise is 'rbf'", "RBF(…)")),  # pyright: ignore
        (lambda: gpvi.SVGD(kernel=3), ("kernel is 3", "'rbf'", "RBF()")),  # pyright: ignore
        (lambda: gpvi.SVGD(annealing=5), ("annealing is 5", "Annealing(…)")),  # pyright: ignore
        (lambda: gpvi.KSD(critic="x"), ("critic is 'x'", "KSDDirection(…)")),  # pyright: ignore
        (lambda: gpvi.SVGD(learning_rate="fast"), ("learning_rate is 'fast'", "0.05")),  # pyright: ignore
        (lambda: gpvi.GPVI(batches=True), ("batches is True", "1", "2")),
        (lambda: gpvi.GPVI(pathwise_share="a"), ("pathwise_share is 'a'", "from 0 to 1")),  # pyright: ignore
        (lambda: gpvi.NUTS(acceptance="a"), ("acceptance is 'a'", "number between 0 and 1")),  # pyright: ignore
        (lambda: gpvi.NUTS(warmup=True), ("warmup is True", "≥ 0")),
        (lambda: gpvi.HMC(jitter=None), ("jitter is None", "less than 1")),  # pyright: ignore
        (lambda: gpvi.MeanFieldVI(local="no"), ("local is 'no'", "True or False")),  # pyright: ignore
        (lambda: Residual(learn_scale="no"), ("learn_scale is 'no'", "True or False")),  # pyright: ignore
        (lambda: Residual(latent=0), ("latent is 0", "≥ 1")),
        (lambda: Triangular(latent="x"), ("latent is 'x'", "whole number")),  # pyright: ignore
        (lambda: SplineFlow(knots=100_000), ("100001 bins", "fewer knots")),
        (lambda: MLP((True,)), ("hidden", "(True,)")),
        (lambda: gpvi.bnn.ScaleMixture(share="a"), ("share is 'a'", "number between 0 and 1")),  # pyright: ignore
        (lambda: gpvi.bnn.PerLayer(1.0), ("scales is 1.0", "PerLayer((1.0, 0.5))")),  # pyright: ignore
        (lambda: gpvi.AmortizedGFSF(batches=2), ("batches is 2", "GFSF", "Omit it")),
    ],
)
def test_bad_values_are_refused_with_value_reason_and_remedy(make, words):
    with pytest.raises((errors.InputError, errors.NotAvailableError)) as caught:
        make()
    for word in words:
        assert word in str(caught.value)


def test_numbers_of_numpy_and_lists_become_plain():
    made = gpvi.SVGD(particles=np.int64(7), learning_rate=np.float32(0.5))  # pyright: ignore
    assert made == gpvi.SVGD(particles=7, learning_rate=0.5)
    assert json.loads(json.dumps(specs.to_json(made)))["particles"] == 7
    assert hash(MLP([8, np.int32(4)])) == hash(MLP((8, 4)))  # pyright: ignore


def test_l2_has_no_helper():
    with pytest.raises(errors.NotAvailableError, match="solver='block'"):
        gpvi.GPVI(gradient="l2", solver="helper")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("solver", "helper"),
        ("solver", Helper(width=3)),
        ("kernel", "full"),
        ("kernel", RBF(1.0)),
        ("batches", 1),
        ("pathwise_share", 0.5),
    ],
)
def test_an_option_that_the_gradient_would_ignore_is_refused(option, value):
    for gradient in ("pathwise", "l2"):
        if (gradient, option) != ("l2", "solver"):
            with pytest.raises(errors.InputError, match=rf"{option} is .*'functional'.*paper\(\)"):
                gpvi.GPVI(gradient=gradient, **{option: value})
    made = gpvi.GPVI(gradient="functional", **{option: value})
    assert specs.from_json(specs.to_json(made)) == made


def test_what_is_the_default_in_effect_may_be_given_anywhere():
    given = gpvi.GPVI(solver=Block(), kernel=OnNoise(), batches=2)
    assert given.solver == Block()


def test_a_method_saved_with_an_ignored_option_is_still_read():
    older = specs.to_json(gpvi.GPVI(particles=7)) | {"kernel": "full", "solver": {"type": "Helper"}}
    assert specs.from_json(older) == gpvi.GPVI(particles=7)
    with pytest.raises(errors.StorageError, match="kernel is 3"):
        specs.from_json(older | {"kernel": 3})


def test_shorthands_and_objects_are_the_same_method_in_effect():
    functional = partial(gpvi.GPVI, gradient="functional")
    assert functional(kernel=RBF())._noise_kernel() == OnNoise("head", RBF())
    assert functional(kernel="full")._noise_kernel() == OnNoise("full")
    assert gpvi.SVGD(kernel="imq").direction() == gpvi.SVGD(kernel=IMQ()).direction()


def test_fields_newer_than_a_document_get_their_defaults():
    method = gpvi.GPVI(particles=7)
    older = specs.to_json(method)
    del older["first_round"], older["generator"]["gain"]
    document = {"method": older, "steps": 3, "widths": [1, 2]}
    assert specs.completed(document) == {**document, "method": specs.to_json(method)}
    older["particles"] = 8
    assert specs.completed(document)["method"] != specs.to_json(method)
    with pytest.raises(errors.StorageError, match="does not know"):
        specs.completed([{"type": "Newer"}])
