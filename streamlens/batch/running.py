"""Many prompts through the same questions, stored as they are done.

1. The folder is locked; the model is loaded; the prompts are tokenised and cut into shards (`plan.py`).
2. Shards that are stored already are left out. The others run, here, in processes, or on Ray, and each is stored
   whole as soon as it is done: whatever ends the run, what is stored stays, and the same call goes on.
3. Prompts that fail are rows with the reason.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from streamlens import __version__, arguments
from streamlens.batch import local
from streamlens.batch.analyses import chosen, readers_of, tables_of
from streamlens.batch.plan import Plan, make_plan
from streamlens.batch.progress import Tally
from streamlens.batch.results import Results, reading
from streamlens.batch.schemas import VERSION
from streamlens.batch.settings import Settings
from streamlens.batch.shard import Done, Runner, Shard
from streamlens.batch.store import FORMAT, Folder
from streamlens.batch.work import require_runnable
from streamlens.errors import InputError
from streamlens.models.handle import ModelHandle
from streamlens.prompts import BadPrompt, Prompt, checked, rows_of
from streamlens.readouts.readers.reader import Reader

Prompts = str | Path | Iterable[str | Mapping[str, Any] | Prompt | BadPrompt]
ENGINES = ("local", "ray")
KEEP, FRESH, RETRY = "resume", "fresh", "retry-failed"


@arguments.typed
def run(
    prompts: Prompts,
    folder: str | Path,
    *,
    model: ModelHandle | str | None = None,
    settings: Settings | None = None,
    readers: Sequence[Reader] = (),
    start: str = KEEP,
    engine: str = "local",
    workers: int = 1,
    ray_address: str | None = None,
    progress: Callable[[Tally], None] | None = None,
    log: Callable[[str], None] = lambda line: None,
    **changes: Any,
) -> Results:
    """Runs analyses over many prompts and stores the results.

    Args:
        prompts: A file (`.txt`, `.jsonl`, `.csv`, `.parquet`), or texts, or mappings with a column `prompt` or `text`.
        folder: Where the results go. What is stored there already is not computed again.
        model: A handle, or what `streamlens.load` takes; None for that of the settings.
        settings: What is computed; None for the defaults.
        readers: Further readers beside those of `for`.
        start: "resume", "fresh" to drop what is stored, or "retry-failed" to run shards with failed prompts again.
        engine: "local" or "ray".
        workers: Processes, or actors on Ray. With 1 the local engine runs in this process.
        ray_address: A Ray cluster's address; None for one started here.
        progress: Called with the counts after every shard.
        log: Told what is being done, a line at a time.
        **changes: Settings by the names of the flags, with underscores; `for` is `wanted` or `{"for": ...}`.

    Returns:
        The results, as `streamlens.batch.open` gives them.

    Raises:
        InputError: Settings, prompts or readers that do not fit; a folder that another run holds, or that holds the
            results of another batch.
        StreamlensError: The disk is full. What is stored stays.

    Cost: a forward of every prompt, batched, for analyses of the ledger; for `ablations` about three forwards a prompt.
    """
    settings = (settings or Settings()).changed({{"wanted": "for"}.get(name, name): v for name, v in changes.items()})
    chosen(settings)
    if engine not in ENGINES or start not in (KEEP, FRESH, RETRY) or workers < 1:
        raise InputError(
            f"A batch runs on {' or '.join(ENGINES)}, with at least one worker, and starts as {KEEP}, {FRESH} or "
            f"{RETRY}; got engine={engine!r}, workers={workers}, start={start!r}."
        )
    rows = list(_rows(prompts, settings.column))
    if rows and all(isinstance(row, BadPrompt) for row in rows):  # a column of another name, not some bad lines
        next(row for row in rows if isinstance(row, BadPrompt)).throw()
    place = Folder(Path(folder))
    with place.locked():
        handle = _loaded(model, settings, log)
        settings = replace(settings, model=handle.name, dtype=str(handle.dtype).removeprefix("torch."))
        require_runnable(handle, settings)
        if engine == "ray" or workers > 1:
            local.require_source(handle)
        asked = (*readers_of(handle, settings), *readers)
        for analysis in chosen(settings):
            analysis.check(handle, settings, asked)
        plan = make_plan(handle, settings, asked, rows)
        place.begin(_manifest(handle, settings, asked, plan), settings, fresh=start == FRESH)
        runner = Runner.of(handle, settings, asked, key=plan.key)
        todo, tally = _left(place, plan, retry=start == RETRY)
        if progress is not None:
            progress(tally)
        for done in _engine(engine, workers, ray_address)(runner, todo):
            place.commit(done)
            tally.add(prompts=done.prompts, failed=done.failed, tokens=done.tokens)
            if progress is not None:
                progress(tally)
    return Results(Path(folder))


def _engine(engine: str, workers: int, address: str | None) -> Callable[[Runner, Sequence[Shard]], Iterator[Done]]:
    if engine == "ray":
        from streamlens.batch.on_ray import on_ray

        return lambda runner, shards: on_ray(runner, shards, workers=workers, address=address)
    if workers == 1:
        return local.here
    return lambda runner, shards: local.spawned(runner, shards, workers=workers)


def _rows(prompts: Prompts, column: str | None) -> Iterator[Prompt | BadPrompt]:
    if isinstance(prompts, str | Path):
        yield from rows_of([str(prompts)], column=column)
        return
    for number, given in enumerate(prompts, 1):
        where = f"prompt {number}"
        if isinstance(given, Prompt | BadPrompt):
            yield given
        elif isinstance(given, Mapping):
            names = [column] if column else ["prompt", "text"]
            text = next((given[name] for name in names if name in given), None)
            yield checked(text, where, given)
        else:
            yield checked(given, where)


def _loaded(model: ModelHandle | str | None, settings: Settings, log: Callable[[str], None]) -> ModelHandle:
    if isinstance(model, ModelHandle):
        return model
    from streamlens.models.load import load

    return load(model or settings.model, device=settings.device, dtype=settings.dtype, log=log)


def _manifest(model: ModelHandle, settings: Settings, readers: Sequence[Reader], plan: Plan) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "schema": VERSION,
        "key": plan.key,
        "identity": dict(plan.identity),
        "model": {**model.provenance, "sha256": model.fingerprint},
        "settings": settings.to_dict(),
        "readers": [{"name": reader.name, "rows": list(reader.rows), "unit": reader.unit} for reader in readers],
        "tables": tables_of(settings, readers),
        "prompts": plan.prompts,
        "shards": len(plan.shards),
        "streamlens": __version__,
    }


def _left(place: Folder, plan: Plan, *, retry: bool) -> tuple[list[Shard], Tally]:
    """The shards that are still to run, and the counts of those that are stored."""
    stored = set(place.done())
    tally = Tally(total=plan.prompts)
    left: list[Shard] = []
    for shard in plan.shards:
        if shard.number not in stored:
            left.append(shard)
            continue
        with reading(place.path, "prompts"):
            table = pq.read_table(place.shard(shard.number) / "prompts.parquet", columns=["stage"])
            stages = table["stage"].to_pylist()
        if retry and any(stage not in (None, "input") for stage in stages):
            left.append(shard)
            continue
        tally.before += len(stages)
        tally.failed_before += sum(stage is not None for stage in stages)
    return left, tally
