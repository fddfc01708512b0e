"""Open-category classification of images (Tables 3 and 4): MNIST, CIFAR-10 and 8 × 8 digits."""
