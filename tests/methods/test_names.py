"""Methods by name."""

from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpvi
from gpvi.errors import InputError, UnknownOptionError
from gpvi.methods import METHODS, as_method, method_name
from gpvi.specs import hyphenated

pytestmark = pytest.mark.usefixtures("unexplored")


@given(st.sampled_from(METHODS), st.sampled_from("-_ "), st.booleans())
def test_every_spelling_of_a_class_is_its_name(kind, separator, upper):
    name = hyphenated(kind.__name__)
    written = name.replace("-", separator)
    assert method_name(written.upper() if upper else written) == name
    assert as_method(written) == as_method(kind.__name__) == kind()


@pytest.mark.parametrize(
    ("short", "kind"), [("mfvi", gpvi.MeanFieldVI), ("flow", gpvi.NormalizingFlow)]
)
def test_short_names(short, kind):
    assert as_method(short) == kind()


def test_what_is_no_method_is_refused():
    with pytest.raises(UnknownOptionError, match="Did you mean 'nuts'"):
        as_method("nutz")
    for wrong in (gpvi.NUTS, 3, None):
        with pytest.raises(InputError, match="pass a name such as 'nuts'"):
            as_method(wrong)
    method = gpvi.SVGD(particles=3)
    assert as_method(method) is method


def test_fit_takes_a_name_and_a_seed():
    target = gpvi.Target(lambda x: -x @ x, dim=2)
    options = {"steps": 3, "init": None, "progress": False}
    by_name = gpvi.fit(target, "svgd", key=5, **options)
    by_object = gpvi.fit(target, gpvi.SVGD(), key=jax.random.key(5), **options)
    np.testing.assert_array_equal(by_name.particles, by_object.particles)
    np.testing.assert_array_equal(
        by_name.sample(9, key=1), by_name.sample(9, key=jax.random.key(1))
    )
    assert str(by_name.diagnose()) == str(by_name.diagnose(key=0))
    assert str(by_name.summary()) == str(by_name.summary(key=jax.random.key(0)))
    asked: Any = (by_name.sample, by_name.draws)
    for asks in asked:
        with pytest.raises(TypeError, match="key"):
            asks(5)
    compared = gpvi.compare(target, ["svgd", "svgd"], key=0, **options)
    assert [row.label for row in compared.rows] == ["SVGD", "SVGD 2"]
