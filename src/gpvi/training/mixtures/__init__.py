"""A mixture of generators for a posterior in which exploration found several modes.

Start reading at `rival.mixture_for`; `gaussians` fits a Gaussian to every mode, `weights` says how heavy each is.
"""
