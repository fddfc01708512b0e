"""Small networks beside long Markov chains (Figures 1 and 2): a regression with a gap, four and two classes."""
