"""The tables of a batch as Arrow schemas: committed, and versioned.

1. A table that is also a frame has that frame's columns (`streamlens.frames.SCHEMAS`) and `role`.
2. `VERSION` rises whenever a column changes; folders of another version are not continued. A test holds the two
   together.
"""

from collections.abc import Mapping
from functools import cache

import pyarrow as pa

from streamlens.frames import SCHEMAS
from streamlens.frames.schemas import TOKEN

VERSION = 1
ROLE = {"role": ("category", "the selector that named the token; without one `first`, `last` or `between`")}
PROMPTS = {
    "prompt_id": ("int32", "number of the prompt in the input, from 0"),
    "where": ("str", "where it came from: file and line"),
    "text": ("str", "the prompt; missing where it is none"),
    "tokens": ("int32", "how many tokens it has; 0 where that is not known"),
    "status": ("category", "done or failed"),
    "stage": ("category", "what a failed prompt failed at: input, tokens or model"),
    "reason": ("str", "why; missing for what is done"),
    "closure": ("float64", "worst relative closing error of its writes, over the tokens looked at"),
    "in_order": ("float64", "largest difference when the writes of its batch are re-added in the model's order"),
    "readout_closure": ("float64", "worst closing error of its readers, in their unit"),
}
MEANS = {
    "table": ("category", "the table whose rows were averaged"),
    "role": ROLE["role"],
    "sink": ("bool", "attention sinks are averaged by themselves"),
    "reader": ("category", "the reader's row; missing where there is none"),
    "unit": ("category", "unit of the values; missing where there is none"),
    "layer": ("Int16", "block; missing for what enters before the first"),
    "kind": ("category", "embed, attn, mlp, ..., or a row that closes the sum"),
    "component": ("category", "the row's label, or what was edited; missing in a mean by layer"),
    "order": ("int32", "the row's number in stream order, of a layer its first row's; -1 without one"),
    "measure": ("category", "the column that was averaged"),
    "n": ("int64", "how many rows"),
    "total": ("float64", "their sum"),
    "squares": ("float64", "the sum of their squares"),
}
LOGITS = {
    **TOKEN,
    "rank": ("int32", "0 for the most likely next token"),
    "top_token_id": ("int32", "id of the predicted token"),
    "top_token": ("str", "its text"),
    "logit": ("float32", "the model's own logit"),
    "probability": ("float32", "its probability"),
}
EDITED = {
    "component": ("category", "the edited write's label, without the token it was edited at"),
    "order": ("int32", "its number among the variants"),
}
READ_AT = {
    "reader": ("category", "the reader's row that was differentiated"),
    "unit": ("category", "its unit"),
    "read_at": ("int32", "the position it was read at, of the token that `role` names"),
    "closure": ("float64", "relative error of the branches' sum against autograd's gradient, of this prompt"),
}


def _with_role(columns: Mapping[str, tuple[str, str]]) -> dict[str, tuple[str, str]]:
    named = {}
    for name, column in columns.items():
        named[name] = column
        if name == "sink":
            named |= ROLE
    return named


#: table -> column -> (type, meaning)
TABLES: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "prompts": PROMPTS,
    "writes": _with_role(SCHEMAS["writes"]),
    "readout": _with_role(SCHEMAS["readout"]),
    "logits": _with_role(LOGITS),
    "effects": {**_with_role(SCHEMAS["effects"]), **EDITED},
    "visibility": _with_role(SCHEMAS["visibility"]),
    "backward": {**_with_role(SCHEMAS["backward"]), **READ_AT},
    "means": MEANS,
}
_TYPES = {
    "bool": pa.bool_(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "Int16": pa.int16(),
    "Int32": pa.int32(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "str": pa.string(),
    "category": pa.dictionary(pa.int32(), pa.string()),
}


@cache
def schema_of(table: str) -> pa.Schema:
    """The Arrow schema of a table; every field says what it means."""
    columns = TABLES[table].items()
    return pa.schema([pa.field(name, _TYPES[kind], metadata={"meaning": text}) for name, (kind, text) in columns])
