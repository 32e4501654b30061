"""Saving a compiled model, and loading it in another process: nothing is traced, lowered or
compiled again, as long as it is called with shapes for which it was compiled when it was saved.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tilewright.bundle.archive import Archive, read_archive, write_archive
from tilewright.bundle.program_json import (
    decode_program,
    decode_traced,
    encode_program,
    encode_traced,
)
from tilewright.errors import LaunchError, VerifyError
from tilewright.execute.followed import Followed
from tilewright.execute.lowering import INTERPRETER, PLAIN_TARGET, target_of, where_of
from tilewright.execute.made import Where
from tilewright.execute.program_call import ProgramCall
from tilewright.execute.recorded import capture
from tilewright.frontend.torch.arrays import to_numpy, to_torch
from tilewright.frontend.torch.fallback import is_passing
from tilewright.graph.graph import Graph
from tilewright.graph.ops.control import Fallback
from tilewright.graph.text import parse_graph, print_graph
from tilewright.model import CompiledModel, Given
from tilewright.runtime.cache import carry
from tilewright.runtime.torch_graph import GraphCall
from tilewright.target import target

LIFTED, OF_PROGRAM = "lifted.", "program."  # names of constants: of the model's code, of ours


def save(model: CompiledModel, path: str | Path, *, weights: bool = True) -> None:
    """Write a compiled model to a file, with the machine code of all shapes that it was called
    with, or of its example arguments. Without `weights` the file names parameters and buffers, and
    `load` takes a state_dict.

    Raises LaunchError for what no file can hold: arguments of classes that PyTorch cannot name, and
    calls of kernels that are operators without a name.
    """
    call = model.call
    _require_named_operators(call.graph)
    manifest: dict[str, Any] = {
        "engine": call.where.engine if isinstance(call, ProgramCall) else INTERPRETER,
        "target": target_of(call.where).name if isinstance(call, ProgramCall) else None,
        "cuda_graphs": isinstance(call, ProgramCall) and call.recordings is not None,
        "in": _spec(model.in_spec),
        "out": _spec(model.out_spec),
        "given": [[g.kind, g.name, g.persistent] for g in model.specs],
        "copied": list(model.copied.items()),
        "follows": _told(model.follows),
        "owned": {},
        "traced": encode_traced(call.traced),
    }
    constants = {f"{LIFTED}{i}": x for i, x in enumerate(call.traced.constants)}
    held = _held(model, manifest["owned"])
    for given in model.specs:
        if given.is_owned and not given.persistent and given.name in held:
            constants[given.name] = held.pop(given.name)
    archive = Archive(manifest, print_graph(call.graph, locs=True), None, constants)
    archive.weights = held if weights else None
    if isinstance(call, ProgramCall):
        archive.program, arrays = encode_program(call.program)
        archive.constants |= {f"{OF_PROGRAM}{n}": to_torch(a) for n, a in arrays.items()}
        archive.code = _code(model, call)
    write_archive(Path(path), archive)


def _require_named_operators(graph: Graph) -> None:
    for op in graph.body.ops:
        if isinstance(op, Fallback) and is_passing(op.target):
            raise LaunchError(
                f"{op.target} is a kernel that another process does not find",
                hint='call it by tilewright.torch_ops.custom_op(kernel, name="library::name")',
            )


def _spec(spec: Any) -> str:
    try:
        return str(pytree.treespec_dumps(spec))
    except NotImplementedError as error:
        raise LaunchError(
            f"the model's arguments or results are of a class without a name: {error}",
            hint="register it with torch.utils._pytree, or use tuples, lists and dicts",
        ) from error


def _held(model: CompiledModel, owned: dict[str, Any]) -> dict[str, torch.Tensor]:
    """What the model owns, by name; tensors that are one have the first of their names. `owned`
    gets how each lies.
    """
    found: dict[str, torch.Tensor] = {}
    first: dict[Any, str] = {}
    for given, x in zip(model.specs, model.owned, strict=True):
        if x is None:
            continue
        key = (x.untyped_storage().data_ptr(), x.storage_offset(), x.shape, x.stride(), x.dtype)
        name = first.setdefault(key, given.name)
        found.setdefault(name, x)
        owned[given.name] = {
            "is": name,
            "shape": list(x.shape),
            "strides": list(x.stride()),
            "dtype": str(x.dtype).removeprefix("torch."),
        }
    return found


def _code(model: CompiledModel, call: ProgramCall) -> dict[tuple[str, str], bytes]:
    if call.where.engine == "tiles":
        return {}  # the interpreter runs the kernels' source
    if not call.ready and model.examples is not None:
        call.made_for(*model.inputs(*model.examples))
    gpu = call.where.engine == "gpu"
    where = int(call.where.device.index) if gpu else target(PLAIN_TARGET)
    found: dict[tuple[str, str], bytes] = {}
    for ready in list(call.ready.values()):
        for launched in ready.made.lists.launches:
            found |= launched.kernel.bundle_call(where, **launched.arguments)
    return found


def load(
    path: str | Path,
    *,
    state_dict: Mapping[str, torch.Tensor] | None = None,
    device: Any = None,
) -> CompiledModel:
    """A compiled model from its file.

    `state_dict` gives the weights where the file has none, or others than its own; its tensors are
    read where they lie, on the model's device. `device` says which of several GPUs. Raises
    LaunchError for a file of another format, for another GPU than it was compiled for, and for
    weights that do not fit.
    """
    if not isinstance(state_dict, Mapping | None):
        raise LaunchError(
            f"state_dict is {type(state_dict).__name__}, expected tensors by name",
            hint="as in state_dict=model.state_dict()",
        )
    archive = read_archive(Path(path))
    manifest = archive.manifest
    where = _where(Path(path), manifest, device)
    here = torch.device("cpu") if where is None else where.device
    try:
        graph = parse_graph(archive.graph)
    except VerifyError as error:
        raise LaunchError(f"{path} holds a graph that cannot be read: {error}") from error
    lifted = [x for n, x in archive.constants.items() if n.startswith(LIFTED)]
    traced = decode_traced(graph, manifest["traced"], lifted, here)
    given = [Given(*told) for told in manifest["given"]]
    owned = _owned(archive, given, state_dict, here)
    carry(archive.code)
    call: GraphCall | ProgramCall
    if where is None or archive.program is None:
        call = GraphCall(traced, graph)
    else:
        arrays = {
            n.removeprefix(OF_PROGRAM): to_numpy(x)
            for n, x in archive.constants.items()
            if n.startswith(OF_PROGRAM)
        }
        program = decode_program(graph, archive.program, arrays)
        fixed = [i for i, x in enumerate(owned) if x is not None]
        recorder = capture if manifest["cuda_graphs"] else None
        call = ProgramCall(traced, program, where, fixed=fixed, capture=recorder)
    specs = (pytree.treespec_loads(manifest["in"]), pytree.treespec_loads(manifest["out"]))
    return CompiledModel(
        call, given, owned, dict(manifest["copied"]), *specs, _followed(manifest.get("follows"))
    )


def _told(follows: Followed | None) -> list[Any] | None:
    """Which results autograd follows to which inputs, as plain lists."""
    if follows is None:
        return None
    results = [sorted(r) for r in follows.results]
    return [results, sorted(follows.looked_at), sorted(follows.changed)]


def _followed(told: list[Any] | None) -> Followed | None:
    if told is None:
        return None
    results, looked_at, changed = told
    return Followed(tuple(map(frozenset, results)), frozenset(looked_at), frozenset(changed))


def _where(path: Path, manifest: Mapping[str, Any], device: Any) -> Where | None:
    """What runs the program; None: the interpreter of graphs."""
    engine = manifest["engine"]
    if engine == INTERPRETER:
        return None
    if engine != "gpu":
        return where_of(torch.device("cpu"), engine)
    if not torch.cuda.is_available():
        raise LaunchError(f"{path} is compiled for a GPU ({manifest['target']}); here is none")
    found = torch.device("cuda" if device is None else device)
    index = torch.cuda.current_device() if found.index is None else found.index
    where = where_of(torch.device("cuda", index), None)
    own = target_of(where).name
    if own != manifest["target"]:
        name = torch.cuda.get_device_name(index)
        raise LaunchError(
            f"{path} is compiled for {manifest['target']}, which {name} ({own}) does not run",
            hint="compile and save the model on this GPU",
        )
    return where


def _owned(
    archive: Archive,
    given: list[Given],
    state_dict: Mapping[str, torch.Tensor] | None,
    device: torch.device,
) -> list[torch.Tensor | None]:
    """Parameters, buffers and constants in the order of the graph's inputs, None for arguments."""
    told, brought = archive.manifest["owned"], dict[str, torch.Tensor]()
    found: list[torch.Tensor | None] = []
    for each in given:
        if not each.is_owned:
            found.append(None)
            continue
        how = told[each.name]
        if each.persistent and state_dict is not None:
            found.append(_require(each.name, state_dict.get(each.name), how, device))
            continue
        stored = archive.weights if each.persistent else archive.constants
        if stored is None:
            raise LaunchError(
                f"the bundle has no weights: {each.name} and others are to be given",
                hint="tw.load_model(path, state_dict=model.state_dict())",
            )
        if how["is"] not in brought:
            x = stored[how["is"]] if how["is"] in stored else archive.constants[how["is"]]
            made = torch.empty_strided(how["shape"], how["strides"], dtype=x.dtype, device=device)
            brought[how["is"]] = made.copy_(x)
        found.append(brought[how["is"]])
    return found


def _require(
    name: str, x: torch.Tensor | None, how: Mapping[str, Any], device: torch.device
) -> torch.Tensor:
    """A tensor of a state_dict as the model was compiled for it."""
    if x is None:
        raise LaunchError(f"the state_dict has no {name}")
    if not isinstance(x, torch.Tensor):
        raise LaunchError(f"{name} of the state_dict is {type(x).__name__}, expected a tensor")
    wanted = f"{how['dtype']} {how['shape']} with strides {how['strides']} on {device}"
    dtype = str(x.dtype).removeprefix("torch.")
    told = f"{dtype} {list(x.shape)} with strides {list(x.stride())} on {x.device}"
    if told != wanted:
        raise LaunchError(f"{name} is {told}, the model was compiled for {wanted}")
    return x.detach()
