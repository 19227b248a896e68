"""Questions to a whole batch: means and correlations against plain pandas over all rows; the figure; the page."""

import numpy as np
import pandas as pd
import pytest

from streamlens import batch, plots
from streamlens.errors import InputError
from streamlens.frames import SCHEMAS
from tiny_batch import sentences

READ = {"wanted": ["river", "water"], "against": ["money", ""], "token": "bank"}
READER = "logit(river) - logit(money)"


@pytest.fixture(scope="module")
def results(handle, tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus") / "out"
    return batch.run([*sentences(15), "w1"], folder, model=handle, analysis=["writes", "ablations"], shard=4, **READ)


@pytest.fixture(scope="module")
def frame(results):
    return batch.corpus(results)


class TestFrame:
    def test_it_has_the_committed_schema(self, frame):
        assert {name: str(kind) for name, kind in frame.dtypes.items()} == {
            name: kind for name, (kind, _) in SCHEMAS["corpus"].items()
        }
        assert frame["component"].cat.categories.tolist()[:3] == ["embed", "L0.attn", "L0.mlp"]
        assert len(frame) == 2 * 7
        assert (frame["n"] == 15).all()

    def test_contributions_are_means_over_all_rows(self, frame, results):
        rows = results.frame("readout")
        for reader in (READER, "logit(water)"):
            mine = frame[frame["reader"] == reader].set_index("component")
            plain = rows[rows["reader"] == reader].groupby("component", observed=True)["contribution"]
            for component in ("embed", "L0.mlp", "L2.attn"):
                assert mine.loc[component, "mean"] == pytest.approx(plain.mean()[component], rel=1e-5)
                assert mine.loc[component, "std"] == pytest.approx(plain.std()[component], rel=1e-4)
                sizes = plain.apply(lambda values: values.abs().mean())
                assert mine.loc[component, "size"] == pytest.approx(sizes[component], rel=1e-5)

    def test_correlations_are_pearsons(self, frame, results):
        effects = results.frame("effects")
        for reader in (READER, "logit(water)"):
            mine = frame[frame["reader"] == reader].set_index("component")
            rows = effects[effects["reader"] == reader]
            for component in ("L0.attn", "L1.mlp", "L2.mlp"):
                own = rows[rows["component"] == component]
                assert mine.loc[component, "effect"] == pytest.approx(own["total"].mean(), rel=1e-9)
                assert mine.loc[component, "correlation"] == pytest.approx(own["direct"].corr(own["total"]), abs=1e-9)
            together = rows["direct"].corr(rows["total"])
            assert frame.attrs["correlation"][f"bank | {reader}"] == pytest.approx(together, abs=1e-9)
            assert np.isnan(mine.loc["embed", "effect"])

    def test_without_ablations_the_effects_are_missing(self, handle, tmp_path):
        found = batch.corpus(batch.run(sentences(3), tmp_path / "out", model=handle, **READ))
        assert found["effect"].isna().all()
        assert found["correlation"].isna().all()
        assert found["mean"].notna().all()

    def test_what_cannot_be_asked(self, handle, tmp_path):
        plain = batch.run(sentences(3), tmp_path / "plain", model=handle)
        with pytest.raises(InputError, match="has no table readout: name a reader: --for"):
            batch.corpus(plain)
        means = batch.run(sentences(3), tmp_path / "means", model=handle, mean="role", **READ)
        with pytest.raises(InputError, match="means are stored without the rows"):
            batch.corpus(means)
        nothing = batch.run(["w1"], tmp_path / "nothing", model=handle, **READ)
        with pytest.raises(InputError, match=r"Nothing is stored in .* yet, or every prompt failed"):
            batch.corpus(nothing)


class TestFigure:
    def test_bars_are_the_frames_means(self, frame):
        figure = plots.corpus(frame, reader=READER, top=4)
        rows = frame[frame["reader"] == READER].nlargest(4, "size").sort_values("order")
        left, right = figure.data
        assert list(figure.layout.yaxis.ticktext) == rows["component"].astype(str).tolist()
        assert list(left.x) == pytest.approx(rows["mean"].tolist())
        assert list(left.error_x.array) == pytest.approx(rows["std"].tolist())
        shown = [np.nan if size is None else size for size in right.x]
        assert shown == pytest.approx(rows["effect"].tolist(), nan_ok=True)
        assert "ablated − clean" in figure.layout.xaxis2.title.text
        assert figure.layout.meta["summary"].startswith(f"Mean contributions to {READER} at bank over 15 prompts")

    def test_without_effects_there_is_one_panel(self, frame):
        figure = plots.corpus(frame.assign(effect=np.nan), reader=READER)
        assert len(figure.data) == 1
        assert list(figure.layout.xaxis.domain) == [0, 1]

    def test_it_refuses_to_guess(self, frame):
        with pytest.raises(InputError, match=r"shows one reader of .*; got several"):
            plots.corpus(frame)
        with pytest.raises(InputError, match=r"shows one role of bank; got 'river'"):
            plots.corpus(frame, reader=READER, role="river")

    def test_hostile_names_are_text(self, frame):
        renamed = frame.assign(reader=frame["reader"].astype(str).replace(READER, "<b>x</b>"))
        title = plots.corpus(renamed, reader="<b>x</b>").layout.title.text
        assert "&lt;b&gt;x" in title


def test_the_page_holds_figures_table_settings_and_what_failed(results, tmp_path):
    page = batch.write_report(results, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "15 of 16 prompts, 1 failed." in page
    assert "default-src 'none'" in page
    for text in ("L2.mlp", "logit(water)", "tiny-llama", "token-column"):
        assert text in page
    assert isinstance(batch.corpus(results), pd.DataFrame)
