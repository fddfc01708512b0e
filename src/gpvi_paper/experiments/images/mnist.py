"""Open category on MNIST (the paper's Table 3)."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from gpvi.bnn import FanIn, Network, lenet5
from gpvi_paper.data import download, mnist
from gpvi_paper.data.images import CLASSES, Images
from gpvi_paper.experiments.base import Published, ReadsData
from gpvi_paper.experiments.images.open_category import OpenCategory
from gpvi_paper.experiments.images.recipes import (
    ENSEMBLE,
    GPVI_BEST,
    HELPER,
    BestSetting,
    NetworkRecipe,
    PaperSetting,
    colder,
)

WEIGHTS = 61_706
"""The number of weights of LeNet-5 for ten classes."""
PAPER = PaperSetting(
    epochs=100,
    batch_size=50,
    latent=256,
    hidden=(256, 512, 1024),
    learning_rate=1e-5,
    entropy_weight=1e-5,
    authors_hidden=(256, 512, 1024),
    generator_decay=0.0,
)
BEST = BestSetting(
    dim=WEIGHTS,
    epochs=40,
    batch_size=250,
    prior=FanIn(gain=12.0, bias=12.0),
    point_prior=FanIn(gain=10.0, bias=10.0),
)
NARROWER = FanIn(gain=6.0, bias=6.0)
UNFINISHED = (
    "At the published rate of 1e-5 directly trained networks have not converged after 100 epochs: the training loss "
    "falls by 0.002 to 0.003 nats per image in the last ten, with a test loss of 0.02; batches of 50, as in the "
    "appendix, would give twice the steps."
)
REASONS = {
    **dict.fromkeys(("SVGD", "GFSF", ENSEMBLE), UNFINISHED),
    "KSD": "At the authors' temperature for particles, 360,000, the entropy outweighs the data: kernels do not resolve "
    "it among 61,706 weights, but a critic does, and drives the networks apart (log p falls again after a quarter of "
    "the steps). On small digits, where T = 1 has an NLL of 0.05, such a temperature has 0.43.",
    "Amortized KSD": "With one critic step at 1e-4 per generator step the critic lags, and two of three seeds end in "
    "networks that predict the same for every image. On small digits a critic at 1e-3 has an NLL of 0.1, this one "
    "1.2 to 2.5.",
    "Amortized GFSF": "Our calibration error is lower; why is not known.",
    "MF-VI": "Not converged either: its bound rises by 3,000 nats in the last ten of 100 epochs, to −204,000.",
    HELPER: "Which difference matters is not known: the authors' code has no term λz, and takes AUC from the entropy "
    "of the mean logits of 100 draws (ours has 0.973 by entropy, which does not explain it); our helper leaves a "
    "residual of 0.85.",
}
SMOKE = BestSetting(dim=WEIGHTS, epochs=1, batch_size=20, members=2, generators=2, latent=4)


class MNIST(OpenCategory, ReadsData[NetworkRecipe]):
    """LeNet-5 on handwritten digits."""

    name = "mnist"
    title = "Open category on MNIST"
    source = "Table 3"
    summary = (
        "LeNet-5 (61,706 weights, ten outputs) on handwritten digits, standardised by the training images. Classes "
        "0–5 are known and 6–9 unknown, as in the authors' code; a second fit to all classes gives the clean "
        "accuracy, and under best GPVI, the deep ensemble and one network are also run on the five splits of Neal et "
        "al. (2018). The preset paper keeps the authors' entropy weights, which are a temperature N · 10 · w with w = "
        "1e-5 for generators (T = 3.6 on six classes) and 1 for particles, over a nearly flat prior N(0, 10²), with a "
        "kernel on all of z and λ = 0.01: with the printed λ = 1 no weight is known better than ±1. The preset "
        "authors is what their code does for all but GPVI: no term λz, particles at 1e-3 with weight decay 1e-4, five "
        "critic steps, and 100 draws. Both have the published epochs and batches of 50; records shown as earlier have "
        "batches of 100 and a kernel on the head. Under best every method targets the posterior itself, T = 1, with "
        "the same budget of ten networks per step for 40 epochs, and generators predict with 100 new networks. Priors "
        "are N(0, g²/fan-in) with g = 12 (of 1.4, 3, 6, 12) for generators and 10 (of 1.4, 3, 10) for the ensemble, "
        "chosen by the likelihood of the last tenth of the training set after 20 epochs; longer training (60 epochs "
        "there) detects more unknown digits and is less confident on more known ones. After 40 epochs that tenth "
        "would choose g = 6 (0.0129 nats against 0.0144), which is better calibrated at T = 0.3 (ECE 0.0004 against "
        "0.0020, 0.0135 nats); both have a row, and so has g = 12 at T = 0.3 and 0.1, not chosen on held-out images, "
        "to show the trade-off of colder posteriors. Rows called sharpened are trained without that tenth, whose "
        "labels then choose the power of the mean prediction for which NLL and ECE are measured."
    )
    figures: Mapping[str, tuple[float, Published | None, Published | None]] = MappingProxyType(
        {
            "SVGD": (0.993, Published(0.989, 0.001), Published(0.001, 0.0002)),
            "GFSF": (0.992, Published(0.988, 0.003), Published(0.002, 0.0003)),
            "KSD": (0.977, Published(0.964, 0.005), Published(0.014, 0.0007)),
            "Amortized SVGD": (0.991, Published(0.958, 0.015), Published(0.002, 0.0007)),
            "Amortized GFSF": (0.992, Published(0.978, 0.005), Published(0.004, 0.0013)),
            "Amortized KSD": (0.977, Published(0.951, 0.008), Published(0.017, 0.0010)),
            "MF-VI": (0.986, Published(0.951, 0.008), Published(0.014, 0.0027)),
            ENSEMBLE: (0.993, Published(0.972, 0.002), Published(0.008, 0.0060)),
            HELPER: (0.993, Published(0.988, 0.001), Published(0.001, 0.0005)),
        }
    )
    reasons = REASONS
    as_published = PAPER
    recommended = BEST
    shortest = SMOKE

    def find(self, directory: Path | None) -> Path:
        """The files in this directory, or downloaded ones."""
        return mnist.find(download.fetch("mnist") if directory is None else directory)

    def own_recipes(self, setting: BestSetting) -> dict[str, NetworkRecipe]:
        """The rows of every image set, and GPVI with a narrower prior and on colder posteriors (see `summary`)."""
        recipes = super().own_recipes(setting)
        narrower = dataclasses.replace(recipes[GPVI_BEST], prior=NARROWER)
        return recipes | {
            "GPVI (pathwise, g = 6)": narrower,
            "GPVI (pathwise, g = 6, T = 0.3)": colder(narrower, 0.3),
            "GPVI (pathwise, T = 0.3)": colder(recipes[GPVI_BEST], 0.3),
            "GPVI (pathwise, T = 0.1)": colder(recipes[GPVI_BEST], 0.1),
        }

    def images(self) -> Images:
        """The images of the four files."""
        return mnist.read(self.directory or self.find(None))

    def network(self, images: Images) -> Network:
        """LeNet-5."""
        return lenet5(CLASSES, images.train.shape[-1], images.train.shape[1])
