"""Posteriors with reference draws: posteriordb, beside NUTS and NumPyro's guides."""
