"""A record is shown under the recipe that it states."""

import dataclasses

from gpvi_paper.experiments import experiment
from gpvi_paper.placing import EARLIER, placed
from made_records import made


def presets(*records):
    return [record.preset for record in placed(records)]


def changed(record, **options):
    specification = record.specification | options
    return dataclasses.replace(record, specification=specification)


def test_a_record_of_today_s_recipe_keeps_its_preset():
    assert presets(made("blr", "SVGD", "paper"), made("blr", "SVGD", "best")) == ["paper", "best"]


def test_a_record_of_another_recipe_is_not_shown_as_a_run_of_this_one():
    assert presets(changed(made("blr", "SVGD", "paper"), steps=7)) == [EARLIER]
    assert presets(changed(made("blr", "SVGD", "best"), steps=7)) == ["best"]
    unknown = {"type": "Unheard", "width": 3}
    assert presets(changed(made("blr", "SVGD", "paper"), method=unknown)) == [EARLIER]


def test_a_record_that_states_the_other_published_recipe_is_shown_there():
    theirs = made("classification4", "SVGD", "authors")
    assert presets(dataclasses.replace(theirs, preset="paper")) == ["authors"]


def test_an_option_that_is_newer_than_the_record_changes_nothing():
    record = made("classification4", "HMC", "paper")
    method = dict(record.specification["method"])
    del method["jitter"]
    assert experiment("classification4").recipes("paper")["HMC"].method.jitter == 0.0  # pyright: ignore
    assert presets(changed(record, method=method | {"jitter": 0.0})) == ["paper"]
    assert presets(changed(record, method=method)) == [EARLIER]
