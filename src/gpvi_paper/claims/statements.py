"""The claims: every printed figure, and what the text says of its tables and figures."""

from collections.abc import Iterator
from functools import partial

from gpvi_paper.claims.base import Alike, Below, Bounded, Claim, Equals, Figure
from gpvi_paper.experiments import EXPERIMENTS

TABLES = {
    "density": "Table 1",
    "blr": "Table 2",
    "mnist": "Table 3",
    "cifar10": "Table 4",
    "overhead": "Sec. 4.5",
}
"""Experiments with printed figures."""
HELPER, EXACT = "GPVI (functional, helper)", "GPVI (functional, exact Jacobian)"
LEARNED = "GPVI (functional, λ learned)"
NARROW = "GPVI (functional, helper of width 10)"
SVGD, GFSF, KSD = "SVGD", "GFSF", "KSD"
AMORTISED = ("Amortized SVGD", "Amortized GFSF", "Amortized KSD")
INTUITION = "The paper judges by what looks right far from the data; no quantity is named."


def claims() -> list[Claim]:
    """Return all claims, those of the text first."""
    return [
        *_density(),
        *_potentials(),
        *_linear_regression(),
        *_regression(),
        *_classes(),
        *_images(),
        *_printed(),
    ]


def _printed() -> Iterator[Claim]:
    """Yield each printed figure."""
    for name, where in TABLES.items():
        experiment = EXPERIMENTS[name]
        titles = {metric.key: metric.label for metric in experiment.metrics}
        for label, rows in experiment.published.items():
            for row, published in rows.items():
                case, _, metric = row.rpartition("/")
                place = f" ({experiment.cases[case]})" if case else ""
                text = f"{label}: {titles[metric]}{place} is {published.mean:g}"
                yield Claim(text, where, Equals(Figure(name, label, row), published))


def _density() -> Iterator[Claim]:
    error = partial(Figure, "density")
    for other in AMORTISED:
        yield Claim(
            f"In five dimensions GPVI is better than {other}",
            "Sec. 4.1",
            Below(error(HELPER, "5d_uniform/max_error"), error(other, "5d_uniform/max_error")),
        )
    yield Claim(
        "In two dimensions GPVI and its exact Jacobian are competitive",
        "App. D",
        Alike(error(HELPER, "2d_uniform/max_error"), error(EXACT, "2d_uniform/max_error")),
    )
    yield Claim(
        "In five dimensions the helper is better than the exact Jacobian",
        "App. D",
        Below(error(HELPER, "5d_uniform/max_error"), error(EXACT, "5d_uniform/max_error")),
        "the authors' exact inverse took the Jacobian at the wrong noise",
    )


def _potentials() -> Iterator[Claim]:
    experiment = EXPERIMENTS["energy"]
    for case, title in experiment.cases.items():
        tv = partial(Figure, "energy", row=f"{case}/tv")
        yield Claim(
            f"{title}: GPVI with λ = 1 is injective",
            "Sec. 3.2",
            Bounded(Figure("energy", EXACT, f"{case}/fold"), most=0.0),
            "the share of draws where det J has the other sign",
        )
        yield Claim(
            f"{title}: GPVI captures the spread of the target better than amortised SVGD",
            "App. D",
            Below(tv(HELPER), tv("Amortized SVGD")),
            "total variation of histograms",
        )
        yield Claim(
            f"{title}: two layers of GPVI are comparable with a planar flow of 32",
            "App. D",
            Alike(tv(HELPER), tv("Planar flow")),
            "total variation of histograms",
        )
    split = partial(Figure, "energy", row="sin_split/tv")
    yield Claim(
        "Sin split: only the flow captures both halves",
        "App. D",
        Below(split("Planar flow"), split(HELPER)),
        "total variation of histograms",
    )


def _linear_regression() -> Iterator[Claim]:
    whole = partial(Figure, "blr", row="covariance_error")
    drawn = partial(Figure, "blr", row="covariance_error_samples")
    for other in (*AMORTISED, "MF-VI", "HMC"):
        yield Claim(
            f"GPVI fits the covariance better than {other}",
            "Sec. 4.2",
            Below(whole(EXACT), whole(other)),
        )
    for other in (SVGD, GFSF):
        yield Claim(
            f"GPVI is competitive with {other}",
            "Sec. 4.2",
            Alike(whole(EXACT), drawn(other)),
            "as printed: a generator by its parameters, particles by their moments",
        )
    yield Claim(
        "The helper is competitive with the exact Jacobian",
        "Sec. 4.2",
        Alike(whole(NARROW), whole(EXACT)),
        "at the published width of 10 it often does not learn; at 100 it does",
    )
    yield Claim(
        "A deep ensemble has no covariance",
        "Sec. 4.2",
        Bounded(drawn("Deep ensemble"), least=0.99),
    )
    solved = partial(Figure, "solvers", row="covariance_error")
    yield Claim(
        "With one iteration of BiCGSTAB in place of the helper GPVI cannot fit",
        "App. C",
        Below(solved("helper of width 10"), solved("BiCGSTAB, one iteration")),
        "on Jᵀ, from a fresh start, one iteration suffices",
    )


def _regression() -> Iterator[Claim]:
    of = partial(Figure, "regression1d")
    yield Claim("HMC matches the uncertainty", "Fig. 1", Bounded(of("HMC", "w1"), most=0.5))
    yield Claim("SVGD is comparable with HMC", "Fig. 1", Alike(of(SVGD, "w1"), of("HMC", "w1")))
    for label in (EXACT, LEARNED):
        yield Claim(
            f"{label} is within one sd of the posterior",
            "Fig. 1",
            Bounded(of(label, "w1"), most=1.0),
        )
        yield Claim(
            f"{label} is nearer to the posterior than amortised SVGD",
            "Fig. 1",
            Below(of(label, "w1"), of("Amortized SVGD", "w1")),
        )
    yield Claim(
        "Amortised SVGD overestimates the uncertainty where data are sparse",
        "Fig. 1",
        Below(of("Amortized SVGD", "sd_gap_reference"), of("Amortized SVGD", "sd_gap")),
    )


def _classes() -> Iterator[Claim]:
    shown = (EXACT, LEARNED, "Amortized SVGD", SVGD, "MF-VI", "Deep ensemble", "HMC")
    for name, where, title in (
        ("classification4", "Fig. 2", "Four classes"),
        ("classification2", "App. D", "Two classes"),
    ):
        of = partial(Figure, name)
        for label in shown:
            yield Claim(
                f"{title}: {label} tells the classes apart",
                where,
                Bounded(of(label, "accuracy"), least=0.99),
            )
        for label in (EXACT, LEARNED):
            yield Claim(
                f"{title}: the uncertainty of {label} is where that of the posterior is",
                where,
                Bounded(of(label, "sd_correlation"), least=0.9),
                "correlation of the predictive sd with long chains over the grid",
            )
            yield Claim(
                f"{title}: {label} is nearer to the posterior than amortised SVGD",
                where,
                Below(of(label, "tv"), of("Amortized SVGD", "tv")),
                "total variation of the predictions over the grid",
            )
    of = partial(Figure, "classification4")
    for label in (EXACT, LEARNED, SVGD):
        yield Claim(
            f"Four classes: {label} is less certain than HMC",
            "Sec. 4.3",
            Below(of(label, "sd_reference"), of(label, "sd")),
            "mean predictive sd over the grid",
        )
    for label in ("Amortized SVGD", "MF-VI", "Deep ensemble"):
        yield Claim(
            f"Four classes: {label} underestimates the uncertainty",
            "Sec. 4.3",
            Below(of(label, "sd"), of(label, "sd_reference")),
            "mean predictive sd over the grid",
        )
    yield Claim(
        "Four classes: amortised SVGD resembles a deep ensemble",
        "Sec. 4.5",
        Alike(of("Amortized SVGD", "sd"), of("Deep ensemble", "sd")),
        "mean predictive sd over the grid",
    )
    yield Claim("Four classes: GPVI and SVGD outperform HMC", "Sec. 4.5", reason=INTUITION)
    yield Claim("Two classes: GPVI matches intuition", "App. D", reason=INTUITION)


def _images() -> Iterator[Claim]:
    others = {
        "mnist": (*AMORTISED, "MF-VI", "Deep ensemble"),
        "cifar10": (*AMORTISED[:2], "MF-VI", "Deep ensemble"),
    }
    for name, where in (("mnist", "Sec. 4.4, MNIST"), ("cifar10", "Sec. 4.4, CIFAR-10")):
        auc, ece = (partial(Figure, name, row=f"split/{m}") for m in ("auroc_variance", "ece"))
        for other in others[name]:
            yield Claim(
                f"GPVI detects unknown classes better than {other}",
                where,
                Below(auc(other), auc(HELPER)),
            )
            yield Claim(
                f"GPVI is better calibrated than {other}", where, Below(ece(HELPER), ece(other))
            )
        for other in (SVGD, GFSF):
            yield Claim(
                f"GPVI detects unknown classes as well as {other}",
                where,
                Alike(auc(HELPER), auc(other)),
            )
    for label in (HELPER, SVGD, GFSF, KSD, *AMORTISED, "MF-VI", "Deep ensemble"):
        yield Claim(
            f"MNIST: {label} has an AUC above .95",
            "Sec. 4.4, MNIST",
            Bounded(Figure("mnist", label, "split/auroc_variance"), least=0.95),
        )
    yield Claim(
        "CIFAR-10: KSD is little better than guessing",
        "Sec. 4.5",
        Bounded(Figure("cifar10", KSD, "clean/accuracy"), most=0.2),
    )
