"""Where the two mean different things by one word: each difference as a sentence with what it comes to, measured.

None of these is an error. Where a number is given, both sides of it are right in their own sense.
"""

import streamlens as sl
from beside import by_hand, theirs
from beside.subject import Subject
from closeness import relative


def meanings(default: Subject, sentence: str, gpt2: Subject) -> list[str]:
    """One sentence or two for each; runs the default model and the tiny gpt2."""
    return [_tokens(default, sentence), _attention(default), *_processed(gpt2), *STANDING]


def _tokens(subject: Subject, sentence: str) -> str:
    bridge = theirs.boot(subject)
    tokens = bridge.to_tokens(sentence)
    right, wrong = subject.pair
    with_bos, without = (theirs.logits(bridge, ids)[0, -1].double() for ids in (tokens, subject.ids))
    return (
        f"**Tokens.** transformer-lens puts a BOS token in front of a text unless told not to: the bank sentence has "
        f"{tokens.shape[1]} tokens there, and logit( river) - logit( money) at its end is "
        f"{float(with_bos[right] - with_bos[wrong]):.3f}. streamlens leaves it to the model's tokenizer: "
        f"{subject.ids.shape[1]} tokens and {float(without[right] - without[wrong]):.3f}. Here both are given "
        "the same ids."
    )


def _attention(subject: Subject) -> str:
    bridge = theirs.boot(subject)
    apart = relative(theirs.logits(bridge, subject.ids), theirs.logits(subject.model, subject.ids))
    return (
        f"**Attention.** A bridge runs the eager implementation, streamlens whatever the model came with. The two "
        f"round differently: the logits of {subject.name} are {apart:.0e} apart."
    )


def _processed(subject: Subject) -> list[str]:
    own = by_hand.numbers(subject)
    bridge = theirs.boot(subject)
    bridge.enable_compatibility_mode()
    writes = theirs.Seen(subject, bridge).writes()
    moved = max(relative(writes[label], own["writes"][label]) for label in own["writes"])
    (right, wrong), model = subject.pair, sl.load(subject.model)
    ledger = sl.decompose(model, subject.ids)
    readout = sl.read(ledger, sl.Reader.logit_diff(model, right, wrong))
    value = theirs.logits(subject.exact, subject.ids)[0, -1]
    value = float(value[right] - value[wrong])
    parts = sum(float(part[0, -1]) for part in theirs.processed(subject).values())
    bias = readout.contributions[readout.labels.index("final_norm.bias"), 0, -1, 0]
    return [
        f"**Weights.** `enable_compatibility_mode()` folds gains and biases into the next matrices and centres what is "
        f"written. It computes the same function up to a constant per token, but its writes are others: on gpt2 up to "
        f"{moved:.2f} of their own size away. streamlens never changes a weight; its writes are the model's.",
        f"**Biases.** Their attribution leaves out the unembedding's bias, into which the final norm's was folded: on "
        f"gpt2 the parts sum to {parts:.3f} and the model says {value:.3f}. streamlens has rows for them "
        f"(`final_norm.bias` is {float(bias):+.3f}), one for a softcap and one for roundings, and its table sums to "
        f"{float(readout.total[0, -1, 0]):.3f}.",
    ]


#: what needs no run of its own; the first two are columns of the table
STANDING = [
    "**The middle of a parallel block.** Both branches read the same stream, so there is no stream between them. "
    "transformer-lens has no `hook_resid_mid` there; `ledger.at('L0.attn')` is the partial sum. Neither is compared.",
    "**Post-norm.** Its `decompose_resid` stacks what the hooks of that name hold. A ledger's rows are what arrives at "
    "the end: each addend through the norms behind it, which is why they sum. `ledger.added` has the addends.",
    '**Attribution and lens.** `direct_logit_attribution(unit="layer")` sends streams of every depth through the '
    "*final* norm's scale; its `logit_lens` and ours through the norm each stream really has. That is compared.",
]
