"""Reads .pt2 files as data: torch reads a copy of the archive that holds only what has been checked here.

torch.export.load runs code of the file in several ways: it unpickles sample inputs and weights in full, evaluates
symbolic sizes as Python, resolves any attribute of torch as an operator, writes names into code that it runs, imports
modules that argument structures name, and loads compiled libraries. Here pickles are read by torch's weights_only
unpickler and written anew, all texts have to be plain, and what is not needed is left out.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from autoshard.util.errors import ParseError

_MODEL, _SAMPLES = "models/model.json", "data/sample_inputs/model.pt"
_WEIGHTS, _CONSTANTS = "data/weights/", "data/constants/"
_CONFIGS = (f"{_WEIGHTS}model_weights_config.json", f"{_CONSTANTS}model_constants_config.json")
_SMALL = ("archive_format", "archive_version", "byteorder", ".data/version", ".data/serialization_id")

_NAME = re.compile(r"[\w.\-:/+ ]*")
"""What any text of a program may be: nothing that could end a name in generated code."""
_OPERATOR = re.compile(r"torch\.ops\.[a-z]\w*(\.\w+){1,2}|_operator\.[a-z]\w*|math\.[a-z]\w*|torch\.sym_[a-z]+")
_WORD, _SYMBOL = re.compile(r"[A-Za-z_]\w*"), re.compile(r"[suz]+\d+")
_SIZE = re.compile(r"[\w+\-*/(), ]*")
_FUNCTIONS = frozenset(
    {"Max", "Min", "FloorDiv", "CeilDiv", "Mod", "PythonMod", "CleanDiv", "IntTrueDiv", "TruncToInt"}
)
# Texts that torch keeps as they are, or escapes where it writes them into code.
_FREE = frozenset({"stack_trace", "nn_module_stack", "torch_fn", "as_string", "as_strings", "torch_version"})
_SPECS = ("in_spec", "out_spec")
_IMPORTS = frozenset({"__enum__", "default_factory_module"})
"""Keys of an argument structure by which torch imports a module that the file names."""

MOST_TEXT = 1 << 30
"""Bytes of JSON that a program may have."""


def load_archive(path: Path) -> Any:
    """The ExportedProgram in a .pt2 file; nothing in the file is run.

    Raises:
        ParseError: it is no such file, or holds what could only be read by running it.
    """
    import torch

    data = _checked(path)
    return torch.export.load(data)


def _checked(path: Path) -> io.BytesIO:
    """The archive again, of checked parts."""
    try:
        with zipfile.ZipFile(path) as archive:
            return _Archive(path, archive).copy()
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError) as error:
        raise ParseError(f"cannot read {path} as an exported program (.pt2): {error}") from error


class _Archive:
    """A .pt2 file that is being checked: its members by their names below the folder that all of them lie in."""

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self.path, self.archive = path, archive
        self.members: dict[str, zipfile.ZipInfo] = {}
        for member in archive.infolist():
            name = member.filename.partition("/")[2]
            if name in self.members:
                self.refuse(f"it holds {name} twice")
            self.members[name] = member
        if _MODEL not in self.members:
            self.refuse(f"it holds no {_MODEL}; files of torch before 2.8 have to be saved again")

    def refuse(self, why: str) -> NoReturn:
        raise ParseError(f"cannot read {self.path} as an exported program (.pt2): {why}")

    def copy(self) -> io.BytesIO:
        """An archive of what torch needs, read and checked."""
        made = io.BytesIO()
        with zipfile.ZipFile(made, "w") as target:
            for name, data in self.parts():
                target.writestr(f"model/{name}", data)
        made.seek(0)
        return made

    def parts(self) -> Iterator[tuple[str, bytes]]:
        for name in _SMALL:
            if name in self.members:
                yield name, self.read(name)
        yield _MODEL, self.model()
        for folder, config in zip((_WEIGHTS, _CONSTANTS), _CONFIGS, strict=True):
            yield from self.tensors(folder, config)
        if _SAMPLES in self.members:
            yield _SAMPLES, self.unpickled(_SAMPLES, "its sample inputs")

    def read(self, name: str) -> bytes:
        member = self.members.get(name)
        if member is None:
            self.refuse(f"it holds no {name}")
        if member.compress_type != zipfile.ZIP_STORED:
            self.refuse(f"{name} is compressed, which torch never writes")
        return self.archive.read(member)

    def model(self) -> bytes:
        """The program's JSON: checked, without what is of no use here."""
        program = self.json(_MODEL)
        if not isinstance(program, dict):
            self.refuse(f"{_MODEL} holds no program")
        program["guards_code"] = []  # Python that checks sizes, which are checked here
        _plain(program, self.refuse)
        return json.dumps(program).encode()

    def tensors(self, folder: str, config: str) -> Iterator[tuple[str, bytes]]:
        """A table of tensors and their numbers."""
        table = self.json(config)
        entries = table.get("config") if isinstance(table, dict) else None
        if not isinstance(entries, dict) or not all(isinstance(one, dict) for one in entries.values()):
            self.refuse(f"{config} is no table of tensors")
        _plain(table, self.refuse)
        yield config, json.dumps(table).encode()
        pickled = {str(one.get("path_name")): bool(one.get("use_pickle")) for one in entries.values()}
        for name, is_pickle in pickled.items():
            if not name.startswith(("weight_", "tensor_")):
                self.refuse(f"it holds the object {name}, which only code of the file could make")
            yield folder + name, self.unpickled(folder + name, name) if is_pickle else self.read(folder + name)

    def json(self, name: str) -> Any:
        data = self.read(name)
        if len(data) > MOST_TEXT:
            self.refuse(f"{name} has more than {MOST_TEXT} bytes")
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            self.refuse(f"{name} is no JSON that can be read: {str(error)[:200]}")

    def unpickled(self, name: str, what: str) -> bytes:
        """A pickle read by an unpickler that knows tensors and plain containers only, written anew."""
        import torch

        try:
            held = torch.load(io.BytesIO(self.read(name)), weights_only=True)
        except Exception as error:  # of any kind: the bytes are the file's
            raise ParseError(
                f"cannot read {self.path} as an exported program (.pt2): {what} are no plain tensors, tuples, lists "
                "and dicts; others are read by running code of the file. Export the module with plain arguments, or "
                "give from_torch the module itself"
            ) from error
        made = io.BytesIO()
        torch.save(held, made)
        return made.getvalue()


def _plain(part: Any, refuse: Callable[[str], NoReturn], key: str = "") -> None:
    """Check every text of a program by the key that it stands under."""
    if isinstance(part, dict):
        if part.get("as_custom_obj") or part.get("custom_obj"):
            refuse("it takes an object that is no tensor")
        if key == "metadata":
            for other in set(part) - _FREE:
                del part[other]
        for name, one in part.items():
            _check_text(name, "", refuse)
            _plain(one, refuse, name)
    elif isinstance(part, list):
        for one in part:
            _plain(one, refuse, key)
    elif isinstance(part, str):
        _check_text(part, key, refuse)


def _check_text(text: str, key: str, refuse: Callable[[str], NoReturn]) -> None:
    if key in _FREE:
        return
    if key in ("target", "as_operator"):
        plain = bool(_OPERATOR.fullmatch(text)) and not text.startswith("torch.ops.load_library")
    elif key == "expr_str":
        words = (word for word in _WORD.findall(text) if not _SYMBOL.fullmatch(word))
        plain = bool(_SIZE.fullmatch(text)) and _FUNCTIONS.issuperset(words)
    elif key in _SPECS:
        plain = _IMPORTS.isdisjoint(_keys(text))
    else:
        plain = bool(_NAME.fullmatch(text))
    if not plain:
        refuse(f"{text[:80]!r} is no {_WORDS.get(key, 'name')} that torch writes")


_WORDS = {"target": "operator", "as_operator": "operator", "expr_str": "size", **dict.fromkeys(_SPECS, "structure")}


def _keys(part: Any) -> Iterator[str]:
    """The keys of nested JSON at any depth, in texts that are JSON themselves as well."""
    if isinstance(part, dict):
        for key, one in part.items():
            yield key
            yield from _keys(one)
    elif isinstance(part, list):
        for one in part:
            yield from _keys(one)
    elif isinstance(part, str):
        try:
            inner = json.loads(part)
        except (ValueError, RecursionError):
            return
        yield from _keys(inner)
