"""Open-category classification of images (Tables 3 and 4): MNIST, CIFAR-10 and 8 × 8 digits.

Start reading at `open_category.py`, what is trained and scored, then `recipes.py`, the rows.
"""
