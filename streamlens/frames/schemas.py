"""The schemas of all frames: every column, its type and what it means. They are part of the product.

Categories stand in stream order; numbers of single rows are float32, sums that have to close float64.
"""

from collections.abc import Mapping

TOKEN = {
    "prompt_id": ("int32", "number of the prompt"),
    "position": ("int32", "position within the prompt's own tokens, from 0"),
    "token_id": ("int32", "id of the token at that position"),
    "token": ("str", "its text, with its spaces"),
    "special": ("bool", "whether it is a special token"),
    "sink": ("bool", "whether its final stream is far above the prompt's median norm"),
}
ROW = {
    "layer": ("Int16", "block, from 0; missing for what enters before the first"),
    "kind": ("category", "embed, pos_embed, attn, mlp, ..., or a row that closes the sum"),
    "component": ("category", "the row's label; ordered as in the stream"),
    "order": ("int32", "the row's number in stream order"),
}
#: further columns of a ledger whose writes are split; the part's number, missing where a row is no such part
PARTS = {
    "head": ("Int16", "query head"),
    "neuron": ("Int32", "hidden unit of the MLP"),
    "expert": ("Int16", "expert of a mixture"),
    "source": ("Int32", "source position that the head reads from"),
    "source_token": ("str", "its token's text"),
    "attention": ("float32", "attention probability from this token to the source token"),
}
#: frame -> column -> (type, meaning)
SCHEMAS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "writes": {
        **TOKEN,
        **ROW,
        "norm": ("float32", "Euclidean norm of the write"),
        "share": ("float32", "<write, stream> / |stream|^2: signed, sums to 1 over a token's rows"),
        "cosine": ("float32", "cosine of the write and the final stream"),
        "stream_norm": ("float32", "norm of the stream after the write"),
    },
    "readout": {
        **TOKEN,
        "reader": ("category", "the reader's row"),
        "unit": ("category", "unit of contribution"),
        **ROW,
        "contribution": ("float32", "what the row adds to the reader; sums to the model's own value"),
    },
    "lens": {
        **TOKEN,
        **ROW,
        "rank": ("int32", "0 for the most likely token"),
        "top_token_id": ("int32", "id of the predicted token"),
        "top_token": ("str", "its text"),
        "logit": ("float32", "its logit if the model stopped after this write"),
        "probability": ("float32", "its probability then"),
    },
    "effects": {
        "variant": ("category", "what was edited, in the order of the sweep"),
        **TOKEN,
        "reader": ("category", "the reader's row"),
        "unit": ("category", "unit of the effects"),
        "clean": ("float64", "the reader's value without edits"),
        "direct": ("float64", "the edited writes' own change: what subtracting them predicts"),
        "indirect": ("float64", "how all other writes responded"),
        "rescale": ("float64", "the final norm's scale moving"),
        "carry": ("float64", "the norms along the stream moving; 0 in a pre-norm model"),
        "softcap": ("float64", "the softcap's share of the change; 0 without one"),
        "total": ("float64", "the sum of these, ablated - clean"),
        "observed": ("float64", "the change of the model's own value, ablated - clean"),
        "closure": ("float64", "|total - observed|"),
        "self_repair": ("float64", "-indirect / direct where they oppose, else 0"),
        "kl": ("float64", "KL(clean || ablated) of the next token, in nats"),
        "top_before": ("str", "the most likely next token without edits"),
        "top_after": ("str", "the most likely next token with them"),
    },
    "ablation": {
        "variant": ("category", "what was edited"),
        **TOKEN,
        **ROW,
        "status": ("category", "edit, response or unchanged"),
        "clean_norm": ("float32", "norm of the write without edits"),
        "ablated_norm": ("float32", "norm of the write with them"),
        "delta_norm": ("float32", "norm of its change"),
        "cosine": ("float32", "cosine of the write with and without edits"),
    },
    "comparison": {
        **TOKEN,
        "position_b": ("int32", "position of the aligned token in context B"),
        "token_b": ("str", "its text there"),
        **ROW,
        "norm_a": ("float32", "norm of the write in context A"),
        "norm_b": ("float32", "norm of the write in context B"),
        "norm": ("float32", "norm of its difference, A - B"),
        "share": ("float32", "<du, dx> / |dx|^2, dx the difference of the final streams: signed, sums to 1"),
        "cosine": ("float32", "cosine of the write's difference and the streams' difference"),
        "cosine_ab": ("float32", "cosine of the write in A and in B"),
    },
    "comparison_effects": {
        "reader": ("category", "the reader's row"),
        "unit": ("category", "unit of all values"),
        "a": ("float64", "the model's own value in context A"),
        "b": ("float64", "the model's own value in context B"),
        "observed": ("float64", "their difference, A - B"),
        "writes": ("float64", "what the writes' differences give"),
        "rounding": ("float64", "what the roundings' difference gives"),
        "rescale": ("float64", "the two contexts' final norms having different scales"),
        "softcap": ("float64", "the softcap's share; 0 without one"),
        "total": ("float64", "the sum of these parts"),
        "closure": ("float64", "|total - observed|"),
    },
    "estimates": {
        "variant": ("category", "what would be edited, in the order of the sweep"),
        **TOKEN,
        "reader": ("category", "the reader's row"),
        "unit": ("category", "unit of the estimate"),
        "clean": ("float64", "the reader's value without edits"),
        "estimate": ("float64", "gradient times change: the first-order effect, ablated - clean"),
    },
    "rank_correlation": {
        "reader": ("category", "the reader's row"),
        "position": ("int32", "where it is read"),
        "variants": ("int32", "how many variants both ran"),
        "spearman": ("float64", "Spearman's rank correlation of estimated and exact effects"),
        "pearson": ("float64", "Pearson's correlation of the same"),
        "slope": ("float64", "least squares through 0: exact = slope * estimate"),
    },
    "lesion": {
        "lesion": ("category", "what was dropped or permuted; the first row is the model as it is"),
        "n_dropped": ("int32", "how many layers or sublayers were dropped at once"),
        "kendall_tau": ("float64", "share of pairs of blocks whose order is inverted: 0 as it is, 1 reversed"),
        "loss": ("float64", "cross entropy of the next token, nats per token"),
        "delta": ("float64", "loss - loss of the model as it is, nats per token"),
        "tokens": ("int64", "how many tokens were predicted"),
        "perplexity": ("float64", "exp(loss)"),
    },
}
#: further columns of the "ablation" frame, one pair per reader row
CHANGES = {
    "clean": ("float32", "what the write gives the reader without edits"),
    "delta": ("float32", "the change of that, ablated - clean, at the clean run's norm scale"),
}
#: further columns of the "comparison" frame, one per reader row
DIFFERENCE = {
    "difference": ("float32", "what the row's difference gives the reader, A - B; sums to the observed difference"),
}
