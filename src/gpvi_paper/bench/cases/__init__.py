"""What is timed: steps, draws, predictions, start-up and memory, beside other libraries and own baselines."""
