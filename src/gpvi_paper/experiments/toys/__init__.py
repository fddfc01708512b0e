"""Small networks beside long chains: a regression with a gap, and classes in the plane (Figures 1 and 2).

Start reading at `toy_networks.py`, the reference and the distances, then `recipes.py`, the rows.
"""
