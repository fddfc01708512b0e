"""Posteriors with closed forms: density estimation, Bayesian linear regression (Tables 1 and 2), and studies.

Start reading at `gaussians.py`, the errors against a known Gaussian, then `blr.py`.
"""
