"""What `streamlens probe` answers: as plain data, and as tables in a terminal."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from streamlens.cli import terminal

_TEXT = 56  # cells of a sentence in a table


def fit_payload(found: Any, reader: Any) -> dict[str, Any]:
    """The probe that was chosen, its controls, and the accuracies after every write."""
    frame = found.to_frame()
    names = ("train_accuracy", "accuracy", "shuffled", "shuffled_low", "shuffled_high")
    depths = [
        {"after": str(row["component"]), **{name: float(row[name]) for name in names}}
        for row in frame.to_dict(orient="records")
    ]
    chosen = next(depth for depth in depths if depth["after"] == reader.after)
    counts = Counter(found.activations.labels)
    return {
        "token": found.activations.token,
        "labels": {name: counts[name] for name in found.classes},
        "train": len(found.train),
        "held_out": len(found.held_out),
        "method": found.method,
        "reader": {"name": reader.name, "unit": reader.unit, "after": reader.after},
        "accuracy": chosen["accuracy"],
        "best": found.best,
        "context": found.context,
        "chance": {"accuracy": found.chance, "low": found.interval[0], "high": found.interval[1]},
        "depths": depths,
        "model": dict(found.provenance),
    }


def show_fit(console: Any, data: Mapping[str, Any]) -> None:
    """A row after every write, and the controls below."""
    from streamlens.display import display_token

    counts = ", ".join(f"{count} {name}" for name, count in data["labels"].items())
    heading = f"{data['method'].replace('_', ' ')} probes at {display_token(data['token'])}: {counts}"
    said = f"fitted to {data['train']} sentences, tested on {data['held_out']} others"
    terminal.show_lines(console, [heading, said, ""])
    made = terminal.table("after", ("right", "right"), ("shuffled labels", "right"), "")
    for depth in data["depths"]:
        spread = f"{depth['shuffled']:.1%} ({depth['shuffled_low']:.1%} to {depth['shuffled_high']:.1%})"
        mark = " · ".join(
            word
            for word, at in (("best", data["best"]), ("this probe", data["reader"]["after"]))
            if depth["after"] == at
        )
        made.add_row(terminal.text(depth["after"]), f"{depth['accuracy']:.1%}", spread, mark)
    console.print(made, "")
    chance = data["chance"]
    terminal.show_lines(
        console,
        [
            f"A bag of the context's tokens: {data['context']:.1%}. Chance: {chance['accuracy']:.1%} "
            f"(95 % interval {chance['low']:.1%} to {chance['high']:.1%}).",
            f"This probe: {data['reader']['name']} after {data['reader']['after']}, in {data['reader']['unit']}.",
        ],
    )
    terminal.show_lines(console, [terminal.made_by(data["model"])], style="dim")


def score_payload(found: Any) -> dict[str, Any]:
    """The accuracies, and every sentence with its values."""
    rows = [
        {
            "text": sentence.text,
            "label": sentence.label,
            "split": sentence.split,
            "predicted": guess,
            "values": dict(zip(found.reader.rows, values, strict=True)),
        }
        for sentence, guess, values in zip(found.sentences, found.predicted, found.values.tolist(), strict=True)
    ]
    reader = found.reader
    return {
        "reader": {"name": reader.name, "unit": reader.unit, "after": reader.after},
        "accuracy": found.accuracy,
        "sentences": rows,
        "model": dict(found.provenance),
    }


def show_scores(console: Any, data: Mapping[str, Any]) -> None:
    """A row a sentence, the wrong ones marked, and the accuracies below."""
    reader = data["reader"]
    where = f" after {reader['after']}" if reader["after"] else ""
    terminal.show_lines(console, [f"{reader['name']}{where}, in {reader['unit']}", ""])
    names = list(data["sentences"][0]["values"])
    made = terminal.table("sentence", "label", *((name, "right") for name in names), "")
    for row in data["sentences"]:
        wrong = "" if row["predicted"] == row["label"] else f"wrong: {row['predicted']}"
        made.add_row(
            terminal.token(row["text"], width=_TEXT if console.is_terminal else None),
            terminal.text(row["label"]),
            *(terminal.signed(row["values"][name]) for name in names),
            terminal.text(wrong),
        )
    console.print(made, "")
    said = ", ".join(f"{share:.1%} of {side}" for side, share in data["accuracy"].items())
    terminal.show_lines(console, [f"Right: {said}."])
    terminal.show_lines(console, [terminal.made_by(data["model"])], style="dim")
