"""What no draw of a method has visited: particles brought from far out to the posterior, on independent islands.

May import: `targets` and below. Start reading at `tempering.advance`, one temperature of the sampler; `search.explore`
chooses where to begin and how many particles to use, after `summits.look_around`; `modes.labelled` sorts what was
found.
"""
