"""What the figures of a study say, in sentences computed from its frames.

Each function takes one frame (of one token and one reader, but for `reads_at`) and gives plain text, legible and not
yet escaped. Signs: positive adds to what is read; changes are ablated - clean.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from streamlens.display import display_token
from streamlens.plots.selection import signed
from streamlens.plots.visibility import times

__all__ = [
    "adds_up",
    "contributors",
    "failures",
    "favours",
    "growth",
    "headline",
    "lens_settles",
    "read_where",
    "strongest",
    "switched",
    "visible_writes",
]


def failures(closure: Mapping[str, Any], checks: Sequence[Mapping[str, Any]]) -> list[str]:
    """What does not close: each number of `closure` has its limit under the same name in `closure["limits"]`."""
    named = {
        "in_order": "the writes re-added in the model's order",
        "relative": "the sum of the writes",
        "readout": "the contributions",
        "effect": "the effects of the ablations",
    }
    wrong = [check["name"] for check in checks if not check["ok"]]
    for name, limit in closure["limits"].items():
        if limit is not None and closure[name] is not None and closure[name] > limit:
            wrong.append(named[name])
    return wrong


def adds_up(closure: Mapping[str, Any], checks: Sequence[Mapping[str, Any]], unit: str) -> list[str]:
    """The verdict and its figures: first one sentence that says whether it adds up, then each number."""
    wrong = failures(closure, checks)
    verdict = "It adds up." if not wrong else f"It does not add up: {'; '.join(wrong)}."
    order = "bit for bit" if closure["in_order"] == 0 else f"within {closure['in_order']:.1e}"
    said = [
        verdict,
        f"Re-added in the model's own order and precision, the writes give the stream {order}.",
        f"Summed in float64 they miss it by {closure['relative']:.1e} of its size: the model's own roundings.",
    ]
    if closure.get("readout") is not None:
        said.append(f"The contributions sum to the model's own value within {closure['readout']:.1e} {unit}.")
    if closure.get("effect") is not None:
        said.append(f"For every ablation, the parts sum to the observed change within {closure['effect']:.1e} {unit}.")
    return said


def contributors(readout: pd.DataFrame, says: str, unit: str, *, top: int = 3) -> str:
    """The largest contributions, and what adds against what subtracts."""
    values: Any = readout["contribution"].astype("float64")
    order = values.abs().sort_values(ascending=False, kind="stable").index[:top]
    named = [f"{readout.loc[i, 'component']} ({signed(float(values[i]))})" for i in order]
    adds, subtracts = float(values[values > 0].sum()), float(values[values < 0].sum())
    return (
        f"{says} is {signed(float(values.sum()))} {unit}, the sum of {len(values)} parts: {signed(adds)} from those "
        f"that add and {signed(subtracts)} from those that subtract. The largest are {_and(named)}."
    )


def favours(steps: pd.DataFrame, tokens: Sequence[str], says: str) -> str:
    """From which write on the running value has the sign that it ends with.

    For a difference of two tokens that is where the two part: from there on the model favours one of them.
    """
    rows: Any = steps.loc[steps["kind"].astype(str) != "rounding"]
    after = rows["after"].astype("float64").tolist()
    positive = after[-1] >= 0
    turn = next((n + 1 for n in range(len(after) - 1, -1, -1) if (after[n] >= 0) != positive), 0)
    where = str(rows["component"].iloc[turn])
    since = f"From {where} on" if turn else "From the first write on"
    if len(tokens) == 2:
        first, second = (f"“{display_token(text)}”" for text in (tokens if positive else reversed(tokens)))
        return f"{since} the stream favours {first} over {second}; that is where the two part for good."
    return f"{since} {says} stays {'positive' if positive else 'negative'}."


def lens_settles(lens: pd.DataFrame) -> str:
    """When the likeliest token of the logit lens is the final one for the first time, and from where on it stays so."""
    best: Any = lens.loc[lens["rank"] == 0].sort_values("order", kind="stable")
    said = best["top_token"].astype(str).tolist()
    names = best["component"].astype(str).tolist()
    first = said.index(said[-1])
    stays = next((n + 1 for n in range(len(said) - 1, -1, -1) if said[n] != said[-1]), 0)
    token, share = f"“{display_token(said[-1])}”", float(best["probability"].iloc[-1])
    how = f"and stays so from {names[stays]} on" if stays != first else "and stays so"
    return f"The model's next token is {token} ({share:.0%}). It is the likeliest first after {names[first]} {how}."


def growth(writes: pd.DataFrame, place: str) -> str:
    """How far the stream's norm grows at one token."""
    rows: Any = writes.loc[writes["kind"].astype(str) != "rounding"].sort_values("order", kind="stable")
    norms = rows["stream_norm"].astype("float64").tolist()
    names = rows["component"].astype(str).tolist()
    steps = [norms[0], *(b - a for a, b in itertools.pairwise(norms))]
    most = max(range(len(steps)), key=steps.__getitem__)
    return (
        f"At {place} the stream's norm goes from {norms[0]:,.3g} after {names[0]} to {norms[-1]:,.3g} after "
        f"{names[-1]}; {names[most]} lengthens it most, by {steps[most]:,.3g}."
    )


def switched(effect: pd.Series, unit: str) -> str:
    """*Subtracting L1.attn@bank predicts +0.42 logits; rerunning the model gives -3.89.* For one row of effects.

    Without a reader: what becomes of the likeliest next token.
    """
    fields: Any = effect
    edit = str(fields["variant"])
    if not fields["reader"]:
        before, after = (f"“{display_token(str(fields[f'top_{side}']))}”" for side in ("before", "after"))
        turned = f"stays {before}" if before == after else f"turns from {before} to {after}"
        return f"Without {edit} the likeliest next token {turned}; KL(clean, ablated) is {fields['kl']:.3f} nats."
    told = f"Changing {edit} alone" if "=" in edit else f"Subtracting {edit}"
    direct, total = signed(float(fields["direct"])), signed(float(fields["total"]))
    return f"{told} predicts {direct} {unit}; rerunning the model gives {total}."


def strongest(effects: pd.DataFrame, changes: pd.DataFrame, unit: str) -> str:
    """The ablation that changes most, and the write that responds to it most."""
    reader = str(effects["reader"].iloc[0])
    size = "total" if reader else "kl"
    row: Any = effects.loc[effects[size].abs().idxmax()]
    lines = [f"Of {len(effects)} sublayers, {row['variant']} changes most. {switched(row, unit)}"]
    value = f"delta: {reader}" if reader else "delta_norm"
    moved: Any = changes.loc[(changes["variant"] == row["variant"]) & (changes["status"].astype(str) == "response")]
    if len(moved):
        top: Any = moved.loc[moved[value].abs().idxmax()]
        how = f"{signed(float(top[value]))} {unit}" if reader else f"a change of norm {float(top[value]):,.3g}"
        lines.append(f"The strongest response is {top['component']}'s: {how}.")
    if reader:
        against: Any = effects["direct"] * effects["indirect"] < 0
        opposed = int(against.sum())
        lines.append(f"In {opposed} of {len(effects)} ablations the responses work against the direct effect.")
    return " ".join(lines)


def read_where(sources: pd.DataFrame, unit: str) -> str:
    """From which token attention brought most, and the largest single head."""
    value = "contribution" if "contribution" in sources.columns else "share"
    unit = unit if value == "contribution" else "of the stream"
    sums: Any = sources.groupby("source")[value].sum()
    texts: Any = sources.drop_duplicates("source").set_index("source")["source_token"]
    most: Any = sums.abs().idxmax()
    row: Any = sources.loc[sources[value].abs().idxmax()]
    head = str(row["component"]).partition("<")[0]
    token, source = (f"“{display_token(str(text))}”" for text in (texts[most], row["source_token"]))
    return (
        f"Over these heads, most came from {token} (position {most}): {signed(float(sums[most]))} {unit}. The largest "
        f"single step is {head}'s from {source} (position {row['source']}), {signed(float(row[value]))} at attention "
        f"{float(row['attention']):.2f}."
    )


def visible_writes(visibility: pd.DataFrame, *, top: int = 3) -> str:
    """Which writes the reader sees more of than of a random vector."""
    known: Any = visibility.loc[visibility["lift"].notna()].sort_values("lift", ascending=False, kind="stable")
    if known.empty:
        return "The reader sees nothing of any write."
    above = int((known["lift"] > 1).sum())
    named = [f"{row['component']} ({times(float(row['lift']))})" for _, row in known.head(top).iterrows()]
    chance = float(known["chance"].median())
    return (
        f"The reader sees {chance:.2%} of a random vector, and more than that of {above} of {len(known)} writes; most "
        f"of {_and(named)}. A share says what a reader could see, not that it uses it."
    )


def headline(effects: pd.DataFrame, says: str, unit: str) -> str:
    """What is read when every branch is on."""
    row = effects.iloc[0]
    if not row["reader"]:
        return f"With every branch on, the likeliest next token is “{display_token(str(row['top_before']))}”."
    return f"With every branch on, {says} is {signed(float(row['clean']))} {unit}."


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
