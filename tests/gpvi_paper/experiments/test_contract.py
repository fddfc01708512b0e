"""What every experiment promises: recipes that survive JSON, names of its own, and tables of metrics that exist."""

import json
import subprocess
import sys

import pytest

from gpvi import specs
from gpvi.errors import UnknownOptionError
from gpvi.methods import Method
from gpvi_paper import records
from gpvi_paper.experiments import (
    EXPERIMENTS,
    PRESETS,
    Experiment,
    Recipe,
    experiment,
    matching,
)
from gpvi_paper.experiments.frontier.witnesses import Islands
from gpvi_paper.experiments.reference.peers import Peer


@pytest.mark.parametrize("name", EXPERIMENTS)
class TestContract:
    def test_recipes_survive_json_and_labels_are_distinct(self, name):
        found = experiment(name)
        assert isinstance(found, Experiment) and found.name == name
        for preset in PRESETS:
            recipes = found.recipes(preset)
            assert len({records.slug(label) for label in recipes}) == len(recipes)
            for label, recipe in recipes.items():
                method = recipe.method if isinstance(recipe, Recipe) else recipe
                assert isinstance(method, Method | Peer | Islands), label
                document = json.loads(json.dumps(recipe.to_json()))
                if not isinstance(method, Islands):
                    assert specs.from_json(document["method"]) == method
                assert matching(found, preset, label) == [label]
                assert matching(found, preset, records.slug(label)) == [label]

    def test_tables_and_published_figures_name_metrics_that_exist(self, name):
        found = experiment(name)
        keys = {metric.key for metric in found.metrics}
        assert {key for table in found.tables for key in table.metrics} <= keys
        assert set(found.headline) <= keys
        assert {m.floor for m in found.metrics} | {m.void_if for m in found.metrics} <= keys | {
            None
        }
        rows = {f"{case}/{key}".strip("/") for case in found.cases for key in keys}
        assert {row for figures in found.published.values() for row in figures} <= rows


def test_one_experiment_imports_no_other():
    """Names come without any; the regression comes with its own module and what that stands on."""
    code = """
import sys
from gpvi_paper.experiments import EXPERIMENTS
first = len(EXPERIMENTS) > 15, "blr" in EXPERIMENTS, list(EXPERIMENTS)[1]
before = set(sys.modules)
EXPERIMENTS["blr"]
print(*first, *sorted(m for m in set(sys.modules) - before if m.startswith("gpvi_paper")))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    package = "gpvi_paper.experiments.linear"
    assert done.stdout.split() == [
        "True",
        "True",
        "blr",
        package,
        f"{package}.blr",
        f"{package}.gaussians",
    ]


def test_a_family_is_named_by_its_first_words():
    labels = matching(experiment("blr"), "best", "gpvi")
    assert labels == [
        label for label in experiment("blr").recipes("best") if label.startswith("GPVI")
    ]
    assert matching(experiment("blr"), "best", "nothing") == []


def test_unknown_names_get_the_nearest():
    with pytest.raises(UnknownOptionError, match="'blr'"):
        experiment("brl")
    with pytest.raises(UnknownOptionError, match="'SVGD'"):
        experiment("blr").run("SVG", "smoke", (0,), False)
    with pytest.raises(UnknownOptionError, match="'smoke'"):
        experiment("blr").run("SVGD", "smok", (0,), False)


def test_an_interrupted_training_makes_no_record():
    from gpvi.posterior.history import Training
    from gpvi_paper.experiments.base import Results

    found = Results(experiment("blr"), "SVGD", "smoke", (0,))
    with pytest.raises(KeyboardInterrupt):
        found.follow(Training(10, 300, 1.0, {}, interrupted=True))
