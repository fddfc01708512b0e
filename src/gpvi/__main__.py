"""`python -m gpvi` is the command `gpvi`."""

from gpvi.cli import main

main()
