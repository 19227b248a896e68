"""The depth figures of the README, made anew on the default model: docs/images/depth_*.png.

python scripts/figures.py
"""

from pathlib import Path

import streamlens as sl

IMAGES = Path(__file__).parents[1] / "docs" / "images"
BANK = "After crossing the river, she rested on the bank"


def main() -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    model = sl.load("smollm2-135m")
    river = sl.Reader.logit_diff(model, " river", " money")
    path = sl.trajectory(sl.decompose(model, BANK), model)
    figures = {
        "backward": sl.plots.backward(sl.backward(model, BANK, river, " bank").to_frame()),
        "paths": sl.plots.paths(sl.paths(model, BANK, river, " bank").to_frame()),
        "jacobian": sl.plots.amplification(sl.jacobian(model, BANK, position=" bank").to_frame()),
        "trajectory": sl.plots.trajectory(path.to_frame(), position=9),
        "steps": sl.plots.scaled_steps(sl.scale_steps(model, BANK, calls=(1, 2)).to_frame()),
    }
    for name, figure in figures.items():
        figure.write_image(IMAGES / f"depth_{name}.png", width=760, scale=1)
        print(f"docs/images/depth_{name}.png: {figure.layout.meta['summary']}")


if __name__ == "__main__":
    main()
