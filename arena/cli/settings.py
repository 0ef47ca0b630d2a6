"""What the command line knows of its scheduler: flag before environment before file before default."""

from __future__ import annotations

import difflib
import getpass
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arena.errors import UserError

if TYPE_CHECKING:
    from arena.client.settings import ClientSettings

KEYS = ("scheduler", "token", "token_file", "ca")
CONFIG_VARIABLE = "ARENA_CONFIG"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """The options that every command takes, as given; None where not given."""

    scheduler: str | None = None
    token: str | None = None
    token_file: str | None = None
    ca: str | None = None
    json: bool = False
    verbose: bool = False

    def over(self, outer: Flags) -> Flags:
        """Return these flags, with the outer ones (given before the command) where they are silent."""
        return Flags(
            scheduler=self.scheduler or outer.scheduler,
            token=self.token or outer.token,
            token_file=self.token_file or outer.token_file,
            ca=self.ca or outer.ca,
            json=self.json or outer.json,
            verbose=self.verbose or outer.verbose,
        )


def client_settings(flags: Flags, environ: Mapping[str, str]) -> ClientSettings:
    """Return how to reach the scheduler.

    Args:
        flags: What the command line gave.
        environ: The environment: ``ARENA_SCHEDULER``, ``ARENA_TOKEN``, ``ARENA_TOKEN_FILE``, ``ARENA_CA`` and
            ``ARENA_CONFIG`` (the file, by default ``~/.config/arena/config.yaml``).

    Raises:
        UserError: A file cannot be read or a value is not valid.
    """
    from arena.client.settings import DEFAULT_ADDRESS, ClientSettings

    found = lookup(flags, environ)
    ca = found.get("ca")
    return ClientSettings(
        address=found.get("scheduler") or DEFAULT_ADDRESS,
        token=_token(found),
        tls_ca=Path(ca) if ca else None,
        user=user_name(),
    )


def lookup(flags: Flags, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the settings by key, each from the first layer that has it; a token hides a token file below it."""
    layers: list[Mapping[str, str]] = [
        {key: value for key in KEYS if (value := getattr(flags, key))},
        {key: value for key in KEYS if (value := environ.get(f"ARENA_{key.upper()}"))},
        _file_settings(environ),
    ]
    found: dict[str, str] = {}
    for layer in layers:
        has_token = "token" in found or "token_file" in found
        for key, value in layer.items():
            if key not in found and not (has_token and key in {"token", "token_file"}):
                found[key] = value
    return found


def user_name() -> str:
    """Return the name of the user of this process."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return f"uid-{os.getuid()}"


def _token(found: Mapping[str, str]) -> str | None:
    if token := found.get("token"):
        return token.strip()
    path = found.get("token_file")
    if path is None:
        return None
    try:
        token = Path(path).expanduser().read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the token file {path}", why=str(error)) from error
    if not token:
        raise UserError(f"the token file {path} is empty")
    return token


def _file_settings(environ: Mapping[str, str]) -> dict[str, str]:
    named = environ.get(CONFIG_VARIABLE)
    base = environ.get("XDG_CONFIG_HOME") or str(Path(environ.get("HOME", "~")).expanduser() / ".config")
    path = Path(named) if named else Path(base) / "arena" / "config.yaml"
    try:
        text = path.read_text()
    except FileNotFoundError:
        if named:
            raise UserError(f"there is no file {path}", why=f"{CONFIG_VARIABLE} names it") from None
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}", why=str(error)) from error
    return _checked(text, path) if text.strip() else {}


def _checked(text: str, path: Path) -> dict[str, str]:
    from arena.domain.yamltree import read_tree

    tree = read_tree(text, str(path))
    fields: Any = tree.data
    if not isinstance(fields, dict):
        raise UserError(f"{path} is no mapping of settings", fix=f"allowed: {', '.join(KEYS)}")
    for key, value in fields.items():
        if key not in KEYS:
            close = difflib.get_close_matches(key, KEYS, n=1)
            hint = f", did you mean {close[0]!r}?" if close else ""
            raise UserError(f"{tree.keys[(key,)]}: unknown setting {key!r}{hint}", fix=f"allowed: {', '.join(KEYS)}")
        if not isinstance(value, str):
            raise UserError(f"{tree.values[(key,)]}: {key} must be text")
        if key in {"token_file", "ca"}:
            fields[key] = str(path.parent / Path(value).expanduser())
    return fields
