"""The schemas of frames about depth: trajectories, Jacobians, perturbations, scaled steps."""

from streamlens.frames.columns import ROW, TOKEN

_PLACE = {
    "position": ("int32", "position within the prompt's own tokens, from 0"),
    "token": ("str", "its text, with its spaces"),
}
#: frame -> column -> (type, meaning)
DEPTH: dict[str, dict[str, tuple[str, str]]] = {
    "trajectory": {
        **TOKEN,
        **ROW,
        "norm": ("float64", "norm of the stream after the write"),
        "write_norm": ("float64", "norm of the write"),
        "step": ("float64", "norm of the write over that of the stream before it; missing for the first"),
        "cosine_stream": ("float64", "cosine of the write and the stream before it: above 0 reinforces, below cancels"),
        "cosine_earlier": ("float64", "cosine of the write and the sum of the earlier branches' writes"),
        "turn": ("float64", "angle between the write and the one before it, degrees"),
        "var_stream": ("float64", "variance of the stream before the write over its coordinates"),
        "var_write": ("float64", "variance of the write"),
        "covariance": ("float64", "covariance of the two"),
        "var_sum": ("float64", "variance of the stream after the write: var_stream + var_write + 2 covariance"),
        "var_closure": ("float64", "relative difference between the two sides of that"),
        "rank_embedding": ("Int32", "how many tokens' embeddings are closer by cosine than the token's own"),
        "rank_unembedding": ("Int32", "how many tokens' logits are above the token's own if the model stopped here"),
        "plane_x": ("float64", "coordinate along the main direction of the token's own path"),
        "plane_y": ("float64", "coordinate along the second"),
        "plane_share": ("float64", "share of the variance of the token's path that its plane holds"),
    },
    "trajectory_summary": {
        **ROW,
        "tokens": ("int32", "how many tokens it is over; sinks are left out"),
        "norm": ("float64", "median norm of the stream after the write"),
        "step": ("float64", "median length of the write over that of the stream before it"),
        "cosine_stream": ("float64", "median cosine of the write and the stream before it"),
        "cosine_earlier": ("float64", "median cosine of the write and the sum of the earlier branches' writes"),
        "turn": ("float64", "median angle between the write and the one before it, degrees"),
        "var_growth": ("float64", "median of var_sum / var_stream"),
        "told_embedding": ("float64", "share of tokens whose own embedding is the closest; missing without a model"),
        "told_unembedding": ("float64", "share of tokens whose own logit is the largest; missing without a head"),
    },
    "jacobian": {
        **_PLACE,
        "start": ("str", "the write after which the stream is moved"),
        **ROW,
        "largest": ("float64", "largest singular value of the step's own Jacobian"),
        "smallest": ("float64", "its smallest; missing where only products were made"),
        "branch": ("float64", "largest singular value of the branch alone, J_f of I + J_f; missing after a norm"),
        "reached": ("float64", "largest singular value from the start up to here, other positions held"),
        "bound": ("float64", "product of the steps' largest singular values up to here"),
        "rms": ("float64", "growth of a random direction up to here, root mean square; missing with products only"),
    },
    "perturbation": {
        **_PLACE,
        "start": ("str", "the write after which the stream was moved"),
        "direction": ("str", "random, top or given"),
        "size": ("float64", "length of what was added, relative to the stream's there"),
        **ROW,
        "growth": ("float64", "length of the real change over the length of what was added"),
        "linear": ("float64", "the same by the Jacobian"),
        "error": ("float64", "|real - linear| / |linear|"),
    },
    "scale_steps": {
        **_PLACE,
        "h": ("float64", "what the writes of the layers were multiplied by"),
        "calls": ("int32", "in how many calls each of these layers was applied, at h / calls each"),
        "kl": ("float64", "KL(model || run) of the next token at the position, nats"),
        "loss": ("float64", "cross entropy of the prompt's own next tokens, nats per token"),
        "delta": ("float64", "loss - loss of the model as it is, nats per token"),
        "tokens": ("int32", "how many tokens were predicted"),
        "top": ("str", "the most likely next token at the position"),
    },
}
