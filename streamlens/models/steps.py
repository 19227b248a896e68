"""The steps found so far: writes, program and norms, as the walk along the stream appends them.

1. `add` appends an explanation: its additions in order, and a scale of the whole stream before or after them.
2. `renorm` appends a norm that the stream goes through, its bias as a row of its own.
3. An explanation that leads nowhere is taken back: `mark` and `return_to`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from streamlens.carries import Add, Renorm, Rescale, Step
from streamlens.hooks.record import Event
from streamlens.models.explain import Explanation
from streamlens.models.label import Labels
from streamlens.models.wiring import Norm, Tap, Write


@dataclass
class Steps:
    """A wiring in the making."""

    labels: Labels
    writes: list[Write] = field(default_factory=list)
    program: list[Step] = field(default_factory=list)
    norms: list[Norm] = field(default_factory=list)
    exact: bool = True
    residual: float = 0.0

    def add(self, found: Explanation, terms: Sequence[Event | str], *, layer: int | None) -> None:
        """Appends an explanation's steps; a term is a call, or the name of a constant parameter."""
        scale = Rescale(found.factor)
        if found.factor != 1.0 and found.factor_first:
            self.program.append(scale)
        for group in found.groups:
            for number, coefficient in group.terms:
                term = terms[number]
                if isinstance(term, str):
                    site = self.labels.bias(self.writes[-1].site, "bias")
                    write = Write(site=site, tap=None, scale=coefficient, constant=term)
                else:
                    site = self.labels.site(term, layer=layer)
                    write = Write(site=site, tap=Tap(module=term.module, call=term.call), scale=coefficient)
                self.writes.append(write)
            rows = range(len(self.writes) - len(group.terms), len(self.writes))
            self.program.append(Add(tuple(rows), group.factor))
        if found.factor != 1.0 and not found.factor_first:
            self.program.append(scale)
        self.exact &= found.exact
        self.residual = max(self.residual, found.residual)

    def renorm(self, norm: Norm) -> None:
        """Appends a norm of the whole stream, and the row of its bias."""
        self.norms.append(norm)
        row = None
        if norm.bias:
            site = self.labels.bias(self.writes[-1].site, "norm.bias")
            self.writes.append(Write(site=site, tap=None, constant=f"{norm.tap.module}.{norm.bias}"))
            row = len(self.writes) - 1
        self.program.append(Renorm(len(self.norms) - 1, row))

    def mark(self) -> tuple[int, int, int]:
        """Where the walk stands now."""
        return len(self.writes), len(self.program), len(self.norms)

    def return_to(self, mark: tuple[int, int, int]) -> None:
        """Takes back everything since `mark`."""
        for write in self.writes[mark[0] :]:
            self.labels.release(write.site)
        del self.writes[mark[0] :], self.program[mark[1] :], self.norms[mark[2] :]
