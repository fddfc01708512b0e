"""What the lowest and the newest allowed versions are, and a program that uses the library a little with them."""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXTRAS = ("cli", "plots", "numpyro", "discrete", "pymc", "arviz", "sklearn", "flax", "data")
_REQUIREMENT = re.compile(r"([A-Za-z0-9_.-]+)>=([0-9.]+)")


def requirements() -> list[str]:
    """The library's dependencies, and those of the extras that run on any machine."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    needed = [*project["dependencies"], *(each for name in EXTRAS for each in extras[name])]
    return [requirement for requirement in needed if not requirement.startswith("gpvi[")]


def lowest() -> list[str]:
    """The same, each at its lower bound."""
    pins = []
    for requirement in requirements():
        match = _REQUIREMENT.fullmatch(requirement)
        if match is None:
            raise ValueError(
                f"{requirement!r} has no plain lower bound. Write it as name>=version."
            )
        pins.append(f"{match[1]}=={match[2]}")
    return pins


if __name__ == "__main__":
    print("\n".join({"lowest": lowest, "newest": requirements}[sys.argv[1]]()))
