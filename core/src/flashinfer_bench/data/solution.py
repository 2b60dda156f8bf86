"""Solutions: implementations of a definition."""

from __future__ import annotations

import hashlib
import json
import shlex
from pathlib import PurePosixPath, PureWindowsPath
from typing import Annotated, Any, Optional

import pydantic
from pydantic import AfterValidator, AliasChoices, BeforeValidator, ConfigDict, Field

from flashinfer_bench.data.base import NameEnum, NonEmptyStr, NullIsEmpty, SchemaModel
from flashinfer_bench.errors import DataError, UnsafePathError


class SupportedLanguages(NameEnum):
    """Known languages.

    Other languages are allowed; the installed plugins decide which ones can be built.
    """

    PYTHON = "python"
    TRITON = "triton"
    CPP = "cpp"
    CUDA = "cuda"
    TILELANG = "tilelang"
    CUTE_DSL = "cute_dsl"
    CUTILE = "cutile"
    SYCL = "sycl"


class SupportedBindings(NameEnum):
    """Known bindings, that is, ways of calling compiled code."""

    TVM_FFI = "tvm-ffi"
    TORCH = "torch"


_PYTHON_FAMILY = frozenset({"python", "triton", "tilelang", "cute_dsl", "cutile"})


def _known_language(name: str) -> str:
    text = name.strip().lower()
    return next((one for one in SupportedLanguages if one == text), text)


def _known_binding(name: Optional[str]) -> Optional[str]:
    text = name and name.strip().lower().replace("_", "-")
    return next((one for one in SupportedBindings if one == text), text)


def _safe_path(text: str) -> str:
    """Check that a source path stays in the folder of the solution, on every system."""
    posix, windows = PurePosixPath(text), PureWindowsPath(text)
    if posix.is_absolute() or windows.anchor or ".." in windows.parts or "\0" in text:
        raise UnsafePathError(f"source path '{text}' must be relative and without '..'")
    if not posix.parts or text.endswith(("/", "\\")):
        raise UnsafePathError(f"source path '{text}' does not name a file")
    return text


def _entry_point(text: str) -> str:
    path, separator, symbol = text.partition("::")
    if not (path.strip() and separator and symbol.strip()) or "::" in symbol:
        raise DataError(f"entry point '{text}' is not of the form 'file::symbol'")
    return text


def _as_list(flags: Any) -> Any:
    """Split compile options given as one string; null becomes an empty list."""
    try:
        return shlex.split(flags or "") if isinstance(flags, (str, type(None))) else flags
    except ValueError:  # an open quote; validation reports that it is not a list
        return flags


def _main_file(sources: Any) -> Optional[str]:
    if not isinstance(sources, list):
        return None
    paths = [source.get("path") for source in sources if isinstance(source, dict)]
    if len(paths) == 1 and isinstance(paths[0], str):
        return paths[0]
    return "main.py" if "main.py" in paths else None


_Flags = Annotated[list[str], BeforeValidator(_as_list)]


class SourceFile(SchemaModel):
    """One file of a solution.

    Parameters
    ----------
    path : str
        Path relative to the solution's folder, with ``/``.
    content : str
        Its text.
    """

    model_config = ConfigDict(frozen=True)

    path: Annotated[NonEmptyStr, AfterValidator(_safe_path)]
    content: str


class CompileOptions(SchemaModel):
    """Compiler options of a solution, in addition to those of its builder.

    Other spellings of the names, and flags in one string, are accepted as well.

    Parameters
    ----------
    cflags : list of str
        Flags for the C or C++ compiler.
    cuda_cflags : list of str
        Flags for nvcc.
    ldflags : list of str
        Flags for the linker.
    include_paths : list of str
        Folders with headers: relative to the solution's folder, or absolute.
    """

    model_config = ConfigDict(frozen=True)

    cflags: _Flags = Field([], validation_alias=AliasChoices("cflags", "extra_cflags"))
    cuda_cflags: _Flags = Field(
        [], validation_alias=AliasChoices("cuda_cflags", "extra_cuda_cflags")
    )
    ldflags: _Flags = Field(
        [], validation_alias=AliasChoices("ldflags", "ld_flags", "extra_ldflags")
    )
    include_paths: Annotated[list[NonEmptyStr], BeforeValidator(_as_list)] = Field(
        [], validation_alias=AliasChoices("include_paths", "include_dirs", "extra_include_paths")
    )

    def __bool__(self) -> bool:
        return bool(self.cflags or self.cuda_cflags or self.ldflags or self.include_paths)


class BuildSpec(SchemaModel):
    """How a solution is built and called.

    Parameters
    ----------
    language : str
        Language, in lower case. Any name is accepted; building needs a plugin for it.
    target_hardware : list of str
        Hardware that it is written for, at least one name.
    entry_point : str
        ``file::symbol``; the file is one of the sources.
    dependencies : list of str
        Required packages.
    destination_passing_style : bool
        Whether outputs are passed in as further arguments; otherwise they are returned. If missing
        in a file, it is True, and is not written back.
    binding : str, optional
        How compiled code is called: ``tvm-ffi`` (the default for C++ and CUDA) or ``torch``.
    compile_options : CompileOptions, optional
        Flags for compilers and the linker. Empty options are stored as None.

    Further keys, such as ``build_commands`` of older releases, are kept but never executed.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    language: Annotated[NonEmptyStr, AfterValidator(_known_language)]
    target_hardware: Annotated[list[NonEmptyStr], Field(min_length=1)]
    entry_point: Annotated[str, AfterValidator(_entry_point)]
    dependencies: Annotated[list[str], NullIsEmpty] = Field(default_factory=list)
    destination_passing_style: Annotated[bool, Field(strict=True)] = True
    binding: Annotated[Optional[NonEmptyStr], AfterValidator(_known_binding)] = None
    compile_options: Annotated[
        Optional[CompileOptions], AfterValidator(lambda options: options or None)
    ] = None

    @pydantic.model_validator(mode="before")
    @classmethod
    def _upgrade(cls, data: Any) -> Any:
        """Treat null as missing."""
        if not isinstance(data, dict) or data.get("destination_passing_style", 0) is not None:
            return data
        return {key: value for key, value in data.items() if value is not None}

    @pydantic.model_serializer(mode="wrap")
    def _leave_unstated(self, serialize: pydantic.SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out a calling convention that was not given, and missing compile options.

        Builders may infer the former; omitting the latter keeps older hashes and files unchanged.
        """
        data: dict[str, Any] = serialize(self)
        if "destination_passing_style" not in self.model_fields_set:
            data.pop("destination_passing_style", None)
        if self.compile_options is None:
            data.pop("compile_options", None)
        return data


class Solution(SchemaModel):
    """An implementation of a definition. Instances are immutable.

    Parameters
    ----------
    name : str
        Unique name.
    definition : str
        Name of the definition that it implements.
    author : str
        Person or program that wrote it.
    spec : BuildSpec
        How it is built and called.
    sources : list of SourceFile
        Its files, including that of the entry point; paths are unique.
    description : str, optional
        What it does.
    """

    model_config = ConfigDict(frozen=True)

    name: NonEmptyStr
    definition: NonEmptyStr
    author: NonEmptyStr
    spec: BuildSpec
    sources: Annotated[list[SourceFile], Field(min_length=1)]
    description: Optional[str] = None

    @pydantic.model_validator(mode="before")
    @classmethod
    def _upgrade(cls, data: Any) -> Any:
        """Add the main file to an entry point of 2025-07, which was only a symbol."""
        spec = data.get("spec") if isinstance(data, dict) else None
        if not isinstance(spec, dict):
            return data
        entry, main = spec.get("entry_point"), _main_file(data.get("sources"))
        if not isinstance(entry, str) or not entry.isidentifier() or main is None:
            return data
        return {**data, "spec": {**spec, "entry_point": f"{main}::{entry}"}}

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Solution:
        seen: set[PurePosixPath] = set()
        for index, source in enumerate(self.sources):
            path = PurePosixPath(source.path)
            if path in seen:
                message = f"the path '{source.path}' occurs twice"
                raise DataError(message, field=f"sources.{index}.path")
            seen.add(path)
        entry = self.get_entry_source()
        if entry is None:
            paths = ", ".join(source.path for source in self.sources)
            raise DataError(
                f"the entry file '{self.get_entry_path()}' is not among the sources ({paths})",
                field="spec.entry_point",
            )
        if not entry.content.strip():
            index = self.sources.index(entry)
            message = f"the entry file '{entry.path}' is empty"
            raise DataError(message, field=f"sources.{index}.content")
        return self

    def get_entry_path(self) -> str:
        """Return the file part of the entry point."""
        return self.spec.entry_point.partition("::")[0]

    def get_entry_symbol(self) -> str:
        """Return the symbol part of the entry point."""
        return self.spec.entry_point.partition("::")[2]

    def get_entry_source(self) -> Optional[SourceFile]:
        """Return the file of the entry point, or None."""
        path = PurePosixPath(self.get_entry_path())
        return next((file for file in self.sources if PurePosixPath(file.path) == path), None)

    def requires_build(self) -> bool:
        """Return whether it must be compiled before it can be called."""
        return self.spec.language not in _PYTHON_FAMILY

    def hash(self) -> str:
        """Return a digest of definition, build specification and sources.

        Name, author, description, the order of the sources and unknown keys of the specification
        do not matter.

        Returns
        -------
        str
            SHA-256 in hexadecimal.
        """
        sources = sorted((source.path, source.content) for source in self.sources)
        spec = self.spec.model_dump(mode="json", exclude=set(self.spec.model_extra or ()))
        content = [self.definition, spec, sources]
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def with_unique_name(self) -> Solution:
        """Return the same solution with the digest in its name: ``name_1a2b3c4d``."""
        return self.model_copy(update={"name": f"{self.name}_{self.hash()[:8]}"})

    def to_json(self) -> str:
        """Return the solution as JSON text."""
        return self.model_dump_json(indent=2, exclude_none=True)
