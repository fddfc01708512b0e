"""What the machine can do at most, and how far a step is from it, on one device and on many."""
