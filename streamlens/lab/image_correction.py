"""Predicting a correction to an image, against predicting the image.

1. Three pixels by hand: blurred 0.388, 0.541, 0.100, corrected by +0.512, -0.441, 0.
2. A small convolutional net is trained to turn blurred 8 x 8 images into sharp ones, once as y = F(x), once as
   y = x + F(x), with the same starting weights, data, optimiser and number of steps.
3. Measured on images it has not seen: the error, and how far the branch's output is the difference sharp - blurred.
"""

from dataclasses import dataclass

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from streamlens import plots
from streamlens.lab.book import Book, vector
from streamlens.lab.example import Drawing, Example, below, closes, equal
from streamlens.ledger import Ledger

BLURRED = (0.388, 0.541, 0.100)
CORRECTION = (0.512, -0.441, 0.0)
SIDE, IMAGES, CHANNELS, STEPS, RATE = 8, 64, 8, 200, 1e-2

Images = Float[Tensor, "image 1 row column"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Trained:
    """One of the two nets after training.

    Attributes:
        errors: Mean squared error on unseen images before each step.
        branch: What F gives for the unseen images.
        predicted: The images it predicts: the branch, or the blurred image plus the branch.
    """

    errors: list[float]
    branch: Images
    predicted: Images


def correct(blurred: tuple[float, ...] = BLURRED, correction: tuple[float, ...] = CORRECTION) -> Ledger:
    """The books of one correction; each pixel is a coordinate."""
    x, write = vector(*blurred), vector(*correction)
    book = Book()
    book.add("embed", x)
    book.add("L0.branch", write)
    return book.close(x + write, name="image_correction")


def images(seed: int, *, count: int = IMAGES) -> tuple[Images, Images]:
    """Random blurred images and the sharp ones behind them: three rectangles each, under a 3 x 3 mean."""
    made = torch.Generator().manual_seed(seed)
    sharp = torch.zeros(count, 1, SIDE, SIDE)
    for picture in sharp[:, 0]:
        for _ in range(3):
            top, left = torch.randint(0, SIDE - 2, (2,), generator=made).tolist()
            high, wide = torch.randint(2, 5, (2,), generator=made).tolist()
            picture[top : top + high, left : left + wide] = torch.rand((), generator=made)
    padded = torch.nn.functional.pad(sharp, (1, 1, 1, 1), mode="replicate")
    return torch.nn.functional.avg_pool2d(padded, 3, stride=1), sharp


def train(*, residual: bool, steps: int = STEPS, seed: int = 0) -> Trained:
    """Trains one of the two nets; `residual` says whether it predicts the correction."""
    made = torch.Generator().manual_seed(seed)
    shapes = ((CHANNELS, 1, 3, 3), (CHANNELS, CHANNELS, 3, 3), (1, CHANNELS, 3, 3))
    weights = [(torch.randn(s, generator=made) * (1.0 / (9 * s[1])) ** 0.5).requires_grad_() for s in shapes]
    blurred, sharp = images(seed + 1)
    unseen, wanted = images(seed + 2)

    def branch(x: Tensor) -> Tensor:
        for number, weight in enumerate(weights):
            x = torch.nn.functional.conv2d(x if number == 0 else x.relu(), weight, padding=1)
        return x

    def predict(x: Tensor) -> Tensor:
        return x + branch(x) if residual else branch(x)

    optimiser = torch.optim.Adam(weights, lr=RATE)
    errors = []
    for _ in range(steps):
        with torch.no_grad():
            errors.append(float((predict(unseen) - wanted).square().mean()))
        with torch.enable_grad():
            loss = (predict(blurred) - sharp).square().mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    with torch.no_grad():
        return Trained(errors=errors, branch=branch(unseen), predicted=predict(unseen))


def similarity(a: Tensor, b: Tensor) -> float:
    """Cosine of two sets of images as one vector each."""
    return float((a * b).sum() / (a.norm() * b.norm()))


def example() -> Example:
    """The example with its numbers."""
    runs = {"predicts the correction": train(residual=True), "predicts the image": train(residual=False)}
    correction, image = runs.values()
    blurred, sharp = images(2)
    nothing = float((blurred - sharp).square().mean())
    frame = pd.DataFrame(
        [(name, step, error) for name, run in runs.items() for step, error in enumerate(run.errors)]
        + [("leaves it blurred", step, nothing) for step in (0, STEPS)],
        columns=["series", "step", "error"],
    )
    table = pd.DataFrame(
        {
            "net": list(runs),
            "error before": [run.errors[0] for run in runs.values()],
            "error at step 50": [run.errors[50] for run in runs.values()],
            "error after": [run.errors[-1] for run in runs.values()],
            "cosine of F with sharp - blurred": [similarity(run.branch, sharp - blurred) for run in runs.values()],
            "cosine of F with sharp": [similarity(run.branch, sharp) for run in runs.values()],
        }
    )
    ledger = correct()
    shown = {
        "blurred": blurred[0],
        "F(x), correction": correction.branch[0],
        "sum": correction.predicted[0],
        "sharp": sharp[0],
    }
    pixels = pd.concat([_pixels(name, picture[0]) for name, picture in shown.items()], ignore_index=True)
    return Example(
        name="image_correction",
        title="Correcting an image",
        teaches=(
            "A blurred image is already close to the sharp one, so the branch only has to learn what is missing. "
            "Trained the same way, the net with a skip connection starts and ends nearer, and what its branch learns "
            "is the difference sharp - blurred, not the image."
        ),
        table=table,
        drawings=(
            Drawing(
                caption="One unseen image: what comes in, what the trained branch adds, their sum, and the truth.",
                draw=lambda dark: plots.pictures(pixels, heading="The branch writes a correction", dark=dark),
            ),
            Drawing(
                caption=f"Mean squared error on {IMAGES} unseen images; leaving them blurred has {nothing:.4f}.",
                draw=lambda dark: plots.curves(
                    frame,
                    x="step",
                    y="error",
                    series="series",
                    heading="Predicting the correction, predicting the image",
                    y_title="mean squared error (log scale)",
                    log_y=True,
                    dashed=("leaves it blurred",),
                    dark=dark,
                ),
            ),
        ),
        checks=(
            equal("0.388 + 0.512 = 0.900", ledger.stream[0, 0, 0], 0.9, limit=1e-15),
            equal("0.541 - 0.441 = 0.100", ledger.stream[0, 0, 1], 0.1, limit=1e-15),
            equal("0.100 + 0 = 0.100", ledger.stream[0, 0, 2], 0.1, limit=1e-15),
            below("the net that corrects ends with the smaller error", correction.errors[-1], image.errors[-1]),
            below("and starts with it", correction.errors[0], image.errors[0]),
            below("it corrects: its error is under half of the blurred image's", correction.errors[-1], nothing / 2),
            below("its branch is the difference: cosine over 0.7", 0.7, similarity(correction.branch, sharp - blurred)),
            below("the other's branch is the image: cosine over 0.9", 0.9, similarity(image.branch, sharp)),
            closes(ledger, limit=1e-15),
        ),
        ledger=ledger,
    )


def _pixels(name: str, picture: Tensor) -> pd.DataFrame:
    rows, columns = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    cells = {"row": rows.flatten(), "column": columns.flatten(), "value": picture.flatten()}
    return pd.DataFrame({"image": name, **{key: value.tolist() for key, value in cells.items()}})
