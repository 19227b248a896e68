"""How far a batch is: done, total, failed, tokens per second, time left."""

import time
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Tally:
    """Counts of one run.

    Attributes:
        total: Prompts of the input.
        before: How many were stored already when this run began.
        failed_before: Failures among those.
        done: Prompts that this run has stored, failures included.
        failed: Failures among those.
        tokens: Tokens of the prompts it has stored.
        started: When it began, on `time.monotonic`'s clock.
    """

    total: int
    before: int = 0
    failed_before: int = 0
    done: int = 0
    failed: int = 0
    tokens: int = 0
    started: float = field(default_factory=time.monotonic)

    def add(self, *, prompts: int, failed: int, tokens: int) -> None:
        """Counts a stored shard."""
        self.done += prompts
        self.failed += failed
        self.tokens += tokens

    @property
    def stored(self) -> int:
        """Prompts that are stored, by this run or before it."""
        return self.before + self.done

    @property
    def all_failed(self) -> int:
        """Failures among all that are stored."""
        return self.failed_before + self.failed

    def to_dict(self) -> dict[str, Any]:
        """Plain data: what a line of progress holds. Rates are those of this run; None before the first shard."""
        seconds = time.monotonic() - self.started
        rate = self.done / seconds if self.done and seconds > 0 else None
        return {
            "done": self.stored,
            "total": self.total,
            "failed": self.all_failed,
            "tokens_per_second": None if rate is None else round(self.tokens / seconds, 1),
            "prompts_per_second": None if rate is None else round(rate, 2),
            "seconds_left": None if rate is None else round((self.total - self.stored) / rate, 1),
        }
