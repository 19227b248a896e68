"""Questions to a whole batch: which sublayers write most along a reader, and does switching them off agree.

1. One pass over the shards adds up, for every component, its contributions and, where the batch has `ablations`, the
   direct and total effects of zeroing it. Nothing but the sums is kept.
2. Mean, spread and mean size come from the sums; so does Pearson's correlation of direct and total effect over the
   prompts: 1 where what attribution predicts is what happens, up to a factor.
3. `write_report` puts the figures and the frame into one page.

Direct effect and contribution are one number with opposite signs: zeroing takes the contribution away. Effects are
ablated - clean.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.dataset as ds

from streamlens.arguments import typed
from streamlens.batch.results import Results, reading
from streamlens.display import display_token
from streamlens.errors import InputError
from streamlens.frames.schemas import SCHEMAS
from streamlens.sites import ROWS

KEYS = ["role", "reader", "unit", "component"]
PLACE = ["layer", "kind", "order"]


@typed
def corpus(results: Results) -> pd.DataFrame:
    """One row per (role, reader, component); columns: `streamlens.frames.SCHEMAS["corpus"]`.

    `attrs["correlation"]` holds, for each (role, reader), the correlation of direct and total effect over all prompts
    and components together.

    Args:
        results: A batch with readers, stored as rows.

    Raises:
        InputError: A batch without readers, of means, or of which nothing is stored.

    Cost: one pass over the columns that are needed; memory for one shard.
    """
    if "readout" not in results.tables:
        fix = "means are stored without the rows" if "means" in results.tables else "name a reader: --for"
        raise InputError(f"A batch is asked about its readers; {results.path} has no table readout: {fix}.")
    stored = results.files("readout")
    written: Any = _sums(results, "readout", [*KEYS, *PLACE], {"x": "contribution"}) if stored else ()
    if not len(written):
        raise InputError(f"Nothing is stored in {results.path} yet, or every prompt failed.")
    n, mean = written["n"], written["x"] / written["n"]
    found = written[[*KEYS, *PLACE, "n"]].assign(
        mean=mean, std=_spread(written["xx"], mean, n), size=written["abs"] / n, effect=np.nan, effect_std=np.nan
    )
    found["correlation"] = np.nan
    together: dict[str, float] = {}
    if "effects" in results.tables:
        tried = _sums(results, "effects", KEYS, {"x": "direct", "y": "total"})
        effect = tried["y"] / tried["n"]
        tried = tried.assign(
            effect=effect, effect_std=_spread(tried["yy"], effect, tried["n"]), correlation=_pearson(tried)
        )
        found = found.drop(columns=["effect", "effect_std", "correlation"])
        found = found.merge(tried[[*KEYS, "effect", "effect_std", "correlation"]], on=KEYS, how="left")
        whole = tried.groupby(["role", "reader"], sort=False)[["n", "x", "y", "xx", "yy", "xy"]].sum().reset_index()
        pairs = zip(whole["role"], whole["reader"], _pearson(whole), strict=True)
        together = {f"{role} | {reader}": float(value) for role, reader, value in pairs}
    found = found.sort_values(["role", "reader", "order"], kind="stable", ignore_index=True)
    order = found.drop_duplicates("component").sort_values("order")["component"]
    found["component"] = pd.Categorical(found["component"], order, ordered=True)
    schema = SCHEMAS["corpus"]
    found = found[list(schema)].astype({name: kind for name, (kind, _) in schema.items() if name != "component"})
    found.attrs.update(results.manifest["model"], prompts=results.manifest["prompts"], correlation=together)
    return found


def _sums(results: Results, table: str, keys: list[str], columns: dict[str, str]) -> Any:
    """Sums over all shards for every key, the rows that close a sum left out: n, x, xx, abs, and y, yy, xy."""
    parts = []
    for path in results.files(table):
        where = ~ds.field("component").cast("string").isin(list(ROWS))
        with reading(results.path, table):
            read = ds.dataset(str(path), format="parquet").to_table(columns=[*keys, *columns.values()], filter=where)
            frame: Any = read.to_pandas(ignore_metadata=True)
        frame = frame.rename(columns={old: new for new, old in columns.items()})
        types = dict.fromkeys(KEYS, "str") | dict.fromkeys(columns, "float64") | {"layer": "Int16"}
        frame = frame.astype({name: kind for name, kind in types.items() if name in frame})
        frame = frame.assign(n=1, xx=frame["x"] ** 2, abs=frame["x"].abs())
        if "y" in columns:
            frame = frame.assign(yy=frame["y"] ** 2, xy=frame["x"] * frame["y"])
        parts.append(frame.groupby(keys, sort=False, dropna=False, observed=True).sum(numeric_only=True).reset_index())
    together: Any = pd.concat(parts, ignore_index=True)
    return together.groupby(keys, sort=False, dropna=False, observed=True).sum(numeric_only=True).reset_index()


def _spread(squares: Any, mean: Any, n: Any) -> Any:
    return np.sqrt((squares - n * mean**2).clip(lower=0) / (n - 1).where(n > 1))


def _pearson(sums: Any) -> Any:
    """The correlation of x and y from their sums; missing where one of them does not vary."""
    n = sums["n"]
    x, y = sums["xx"] - sums["x"] ** 2 / n, sums["yy"] - sums["y"] ** 2 / n
    product = sums["xy"] - sums["x"] * sums["y"] / n
    scale = np.sqrt(x.clip(lower=0) * y.clip(lower=0))
    return (product / scale.where(scale > 0)).where(n > 2)


@typed
def write_report(results: Results, path: str | Path, *, top: int = 20) -> Path:
    """One page: for every role and reader the sublayers that write most along it, and the frame behind them.

    Args:
        results: A batch with readers, stored as rows.
        path: The HTML file.
        top: Components that get a row in a figure.

    Raises:
        InputError: As `corpus`; no such folder.
    """
    from streamlens import plots
    from streamlens.report import Section, page, write_page

    frame, manifest = corpus(results), results.manifest
    prompts: Any = results.frame("prompts", columns=["status", "closure", "readout_closure"])
    failed = int((prompts["status"] == "failed").sum())
    sections = [
        Section(
            heading=f"{reader} at {display_token(role)}",
            figure=plots.corpus(frame, reader=reader, role=role, top=top),
            caption="Mean over the prompts, with the standard deviation as a line; contributions are direct logit "
            "attribution, effects are those of zeroing the write at that token and running the rest again.",
        )
        for role, reader in frame[["role", "reader"]].astype(str).drop_duplicates().itertuples(index=False)
    ]
    closure = (
        f"{len(prompts) - failed} of {manifest['prompts']} prompts, {failed} failed. The writes sum to the stream "
        f"within {prompts['closure'].max():.1e}, to the readers within {prompts['readout_closure'].max():.1e}."
    )
    made = page(
        sections,
        title=f"{manifest['prompts']} prompts: what writes along the readers",
        provenance={**manifest["model"], "settings": manifest["settings"], "schema": manifest["schema"]},
        table=frame,
        closure=closure,
    )
    return write_page(path, made)
