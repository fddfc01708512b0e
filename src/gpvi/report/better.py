"""Which end of a metric is the better one, by its key."""

HIGHER = frozenset(
    {
        "accuracy",
        "auroc_confidence",
        "auroc_entropy",
        "auroc_mutual_information",
        "auroc_variance",
        "elbo",
        "ess",
        "good",
        "passed",
        "passed_weighted",
        "sd_correlation",
    }
)
LOWER = frozenset(
    {
        "baseline_milliseconds",
        "compile_seconds",
        "condition_end",
        "covariance_error",
        "covariance_error_samples",
        "cpu_seconds",
        "draw_seconds",
        "ece",
        "ece_width",
        "fold",
        "iterations",
        "k_hat",
        "kl",
        "kl_end",
        "kl_min",
        "max_error",
        "mean_error",
        "mean_error_samples",
        "mean_error_weighted",
        "milliseconds",
        "misled",
        "nll",
        "nll_one",
        "product_error",
        "ratio",
        "residual",
        "rmse",
        "rmse_one",
        "sd_error",
        "sd_error_weighted",
        "seconds",
        "step_milliseconds",
        "tv",
        "w1",
    }
)
"""Others, such as a spread that should be that of the reference, are best at a value of their own."""
YES_OR_NO = frozenset({"good", "misled", "passed", "passed_weighted"})
"""Metrics that are 1 or 0 for each seed."""


def better(key: str) -> str:
    """An arrow to the better end; nothing where there is none."""
    return "↑" if key in HIGHER else "↓" if key in LOWER else ""
