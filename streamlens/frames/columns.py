"""The columns that name a token and a row of a ledger, as every frame that has them spells them: (type, meaning)."""

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
