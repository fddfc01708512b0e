"""Convolutions as matrix products, against XLA."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpvi.bnn.networks import convolution
from gpvi.errors import InputError

KEY = jax.random.key(0)


@pytest.mark.parametrize(
    ("window", "stride", "padding"),
    [
        ((5, 5), (1, 1), "SAME"),
        ((4, 3), (3, 2), "VALID"),
        ((3, 3), (2, 1), ((2, 0), (1, 3))),
    ],
)
def test_equals_xla_for_every_particle(window, stride, padding):
    """Values and gradients, weights per particle."""
    weights = jax.random.normal(KEY, (3, *window, 2, 4))
    x = jax.random.normal(jax.random.key(1), (5, 11, 9, 2))

    def xla(w):
        return jax.lax.conv_general_dilated(
            x, w, stride, padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    def ours(w):
        return convolution.convolve(x, w, stride=stride, padding=padding)

    def both(form):
        loss = lambda w: jnp.sin(form(w)).sum()  # noqa: E731
        return jax.jit(lambda w: (jax.vmap(form)(w), jax.vmap(jax.grad(loss))(w)))(weights)

    for own, expected in zip(both(ours), both(xla), strict=True):
        np.testing.assert_allclose(own, expected, atol=1e-5 * np.abs(expected).max())


def test_stays_a_matrix_product_under_vmap():
    weights, x = jnp.ones((3, 5, 5, 2, 4)), jnp.ones((2, 9, 9, 2))
    lowered = jax.jit(jax.vmap(lambda w: convolution.convolve(x, w))).lower(weights)
    assert "stablehlo.convolution" not in lowered.as_text()
    assert "stablehlo.dot_general" in lowered.as_text()


def test_patches_in_round_numbers_on_a_gpu(monkeypatch):
    """Patches of zeros change neither values nor gradients, in the weights and in the images."""
    w, x = jax.random.normal(KEY, (3, 3, 2, 4)), jax.random.normal(KEY, (5, 11, 9, 2))

    def both():
        out, back = jax.vjp(convolution.convolve, x, w)
        return out, *back(jnp.sin(out))

    expected = both()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(convolution, "MANY", 1)
    assert convolution._padding_patches(5 * 9 * 7) == convolution.ROUND - 315
    for own, plain in zip(both(), expected, strict=True):
        np.testing.assert_allclose(own, plain, atol=1e-5 * np.abs(plain).max())


def test_max_pool():
    x = jax.random.normal(KEY, (2, 7, 6, 3))
    expected = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 3, 1), (1, 2, 3, 1), "VALID")
    np.testing.assert_array_equal(convolution.max_pool(x, (2, 3)), expected)


def test_a_window_larger_than_the_image():
    with pytest.raises(InputError, match="does not fit"):
        convolution.convolve(jnp.ones((1, 3, 3, 1)), jnp.ones((5, 5, 1, 1)))
