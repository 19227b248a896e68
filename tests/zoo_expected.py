"""What is known of the architectures of the zoo beforehand: which close, which are refused, and their peculiarities."""

import zoo_books
from zoo import ENTRIES

#: one stream, and still refused: what the message has to say. A name that leaves this table is one more that closes.
REFUSED = {
    # the stream is multiplied per channel: that is no carry by a number and no norm
    "doge": "does not close at block 0",
    "doge:moe": "does not close at block 0",
    "zaya": "does not close at block 0",
    "muse_spark_text": "does not close at block 0",
    # learned prompt positions come before the tokens, and are cut off after the final norm
    "cpmant": "has 11 positions for 7 tokens",
    # a convolution of the embedding is added behind block 0, outside every block
    "deberta-v2": "does not close at the input of block 1",
    # norms without statistics; blocks that read and write a bottleneck
    "mobilebert": "does not close at block 0",
    # no module list whose items are called with the stream
    "squeezebert": "No list of blocks is called with one stream",
    "flaubert": "through several lists of blocks",
    "xlm": "through several lists of blocks",
    # every other block pads and cuts inside: no module hands on what attention writes
    "pegasus_x, encoder": "does not close at block 1",
}

#: several streams: what the message has to say
SEVERAL = {
    "deepseek_v4": "several parallel streams, [2, 7, 4, 32]",
    "hy_v4": "several parallel streams, [2, 7, 4, 32]",
    "qwen4_exp_text": "does not close at block 0",
    "gemma3n_text": "several parallel streams, [4, 2, 7, 32]",
    "inkling2_text": "does not close at block 0",
    "inkling2_loop_text": "does not close at block 0",
    "glm5_next_text": "several parallel streams, [2, 7, 4, 32]",
    "hrm_text": "several lists of blocks",
    "dory": "does not close at block 0",
    "reformer": "does not close at the input of block 1",
    "funnel": "several lists of blocks",
    "canine": "names no table of token embeddings",
}

#: what the model adds up in a form that no order of additions repeats to the last bit
INEXACT = {
    "beam": "carry and write are both multiplied",
    "esmc": "writes are divided, and the number is no float32",
}

#: attention, and yet no head level, since no linear module's output is the write
NO_HEADS = {
    "jetmoe": "each token's output projection is an expert's",
    "xlnet": "its matrices are tensors in einsum",
    "inkling_text": "a convolution over the tokens comes after the projection",
    "prophetnet, decoder": "main and predicting streams are projected one by one",
}

#: how many query heads, where it is not the zoo's 4
HEADS = {"dots3_note_text": {4, 64}}  # the blocks with a sliding window have their own number

#: blocks that begin by norming the whole stream. `at` counts what is done to the stream to the write before,
#: so the last write of a block includes it, and the stream between two blocks is not among the ledger's.
CARRIED_ON = {
    "bloom:post-norm-residual": "a block begins with the norm of the stream",
    "minimax": "a block begins with the norm of the stream",
}
#: what the last block's output is multiplied by before the final norm
END_FACTOR = {
    "rwkv:rescaled": 1 / 2,  # every second block
}

#: the model's own forward lets padding reach the tokens beside it (shown in the test), so it is refused
SEES_PADDING = {
    "fnet": "its Fourier transform runs over the padding",
    "convbert": "its convolutions run over the padding",
    "nystromformer": "its convolution and its landmarks run over the padding",
    "yoso": "its convolution runs over the padding",
}

#: said to have no linear head, and yet the logits are linear in the normed stream
UNSEEN_HEAD = {
    "neomme": "multiplies by a module's weight without calling the module",
}

SINGLE = [entry for entry in ENTRIES if entry.streams == 1]
LABELLED = {
    zoo_books.Row(name=e.name, stream=s, wiring="", figures={}).label: (e, s)
    for e in ENTRIES
    for s in zoo_books.streams(e)
}
CLOSING = [label for label in LABELLED if label not in REFUSED and label not in SEVERAL]
CLOSES = zoo_books.CLOSES
