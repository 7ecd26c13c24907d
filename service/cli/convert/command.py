"""`finetune convert`: reads a command line or arguments, prints the spec and what it lacks."""

import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from service.cli.convert.check import check
from service.cli.convert.flags import parse, read_json
from service.cli.convert.job import convert, convert_arguments
from service.cli.convert.launcher import NO_COMMAND, Command, read_command
from service.cli.convert.report import Conversion
from service.cli.convert.scripts import NOT_CONVERTED, SCRIPTS, by_options, without_flax
from service.cli.convert.trl import TRAINERS, convert_trl, read_config
from service.cli.terminal import output
from service.cli.terminal.exit_codes import USAGE, UsageError
from service.system import escaping

_PICKLES: Final = (b"PK\x03\x04", b"\x80")
_LONGEST: Final = 1024**2
_KNOWN: Final = (*SCRIPTS, *TRAINERS)
_FILES: Final = ", ".join(f"{name}.py" for name in _KNOWN)
_SECTIONS: Final = ("task", "model", "dataset")


def convert_command(
    source: Annotated[
        list[str],
        typer.Argument(
            metavar="-- COMMAND | FILE",
            help="The command line behind `--`, or a file: arguments as JSON, a dumped "
            "TrainingArguments, or TRL's YAML.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--output", "-o", dir_okay=False, help="Write the spec there, not to stdout."),
    ] = None,
    script: Annotated[
        str | None,
        typer.Option(
            help=f"Which script reads a file of JSON, or of TRL's YAML: {', '.join(_KNOWN)}."
        ),
    ] = None,
    *,
    json: output.AsJson = False,
) -> None:
    """Turn a command line of a reference script of transformers, or of TRL, into a spec.

    The spec goes to stdout as YAML; what was left out, and why, to stderr.
    """
    folder = out.parent if out is not None else Path()
    conversion = _converted(source, script, folder)
    spec, faults = check(conversion.spec)
    text = f"{escaping.yaml_document(spec)}\n"
    if out is not None:
        out.write_text(text, encoding="utf-8")
    if json:
        errors = [fault.model_dump() for fault in faults]
        left_out = [asdict(item) for item in conversion.left_out]
        notes = conversion.notes
        output.print_json({"spec": spec, "left_out": left_out, "notes": notes, "errors": errors})
    else:
        if out is None:
            output.print_text(text)
        _report(conversion, spec)
    for fault in faults:
        output.complain(f"{fault.path}: {fault.message}")
    if faults:
        raise typer.Exit(USAGE)


def _report(conversion: Conversion, spec: Mapping[str, Any]) -> None:
    for item in conversion.left_out:
        given = "" if item.given is True else f" {item.given}"
        output.note(f"left out --{item.option}{given}: {item.reason}")
    for note in conversion.notes:
        output.note(f"note: {note}")
    missing = [f"`{section}`" for section in _SECTIONS if section not in spec]
    if missing:
        output.note(f"note: add {', '.join(missing)}; TrainingArguments do not say them")


def _converted(source: list[str], script: str | None, folder: Path) -> Conversion:
    if script is not None and without_flax(script) not in _KNOWN:
        raise UsageError(f"--script must be one of {', '.join(_KNOWN)}")
    if len(source) > 1 or source[0].endswith(".py"):
        return _of_command(read_command(source, os.environ), folder)
    path = Path(source[0])
    text = _read(path)
    if text.lstrip().startswith("{"):
        return _of_json(text, path, script, folder)
    if script in TRAINERS:
        return convert_trl(read_config(path), script, NO_COMMAND, folder)
    raise UsageError(
        f"{path} does not hold JSON. If it is a shell script, write `finetune convert --` in front "
        "of its command and run the script. If it is TRL's YAML, name the trainer: --script "
        f"{', '.join(TRAINERS)}"
    )


def _of_command(command: Command | None, folder: Path) -> Conversion:
    if command is not None and command.script in TRAINERS:
        return convert_trl(parse(command.arguments), command.script, command, folder)
    if command is None:
        raise UsageError(f"there is none of the scripts that can be converted: {_FILES}")
    flags = parse(command.arguments)
    if command.script in SCRIPTS:
        return convert(flags, command.script, command, folder)
    name, option = by_options(flags) or (command.script, None)
    if name in NOT_CONVERTED:
        raise UsageError(f"`{name}` is not converted: {NOT_CONVERTED[name]}")
    if option is None:
        raise UsageError(
            f"`{command.script}.py` is none of the scripts that can be converted, and has no "
            f"options of only one of them: {_FILES}"
        )
    conversion = convert(flags, name, command, folder)
    conversion.note(
        f"`{command.script}.py` is read as {name}.py, the script that has `--{option}`: check "
        "what it does otherwise"
    )
    return conversion


def _of_json(text: str, path: Path, script: str | None, folder: Path) -> Conversion:
    flags = read_json(path, text)
    if script is not None:
        if script in TRAINERS:
            return convert_trl(flags, script, NO_COMMAND, folder)
        command = replace(NO_COMMAND, is_flax="flax" in script)
        return convert(flags, without_flax(script), command, folder)
    if flags.get("model_name_or_path"):
        raise UsageError(f"say which script reads {path}: --script run_qa, run_clm, …")
    return convert_arguments(flags)


def _read(path: Path) -> str:
    """Raises UsageError if the file is not text."""
    try:
        content = path.read_bytes()[:_LONGEST]
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    if content.startswith(_PICKLES) or path.suffix in (".bin", ".pt", ".pkl"):
        raise UsageError(
            f"{path} is a pickle, which can run code when it is read, so it is not. Where it was "
            "made, write the arguments as JSON: `open('training_args.json', 'w').write("
            "training_args.to_json_string())`, and convert that file"
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not text: {error}") from error
