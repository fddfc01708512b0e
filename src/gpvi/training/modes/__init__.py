"""What is trained where exploration found several modes: a mixture of generators, or one that is shown the particles.

Start reading at `rival.mixture_for`; `gaussians` fits a Gaussian to every mode, `weights` says how heavy each is. For
modes that are joined, or too many to be listed, `particles` lets one generator begin with all of them.
"""
