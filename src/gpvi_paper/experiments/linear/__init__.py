"""Posteriors with closed forms: density estimation, Bayesian linear regression (Tables 1 and 2), and studies."""
