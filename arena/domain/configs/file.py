"""A ``config.json`` as its readers ask it. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from arena.errors import SpecError

Fields = dict[str, Any]
"""Fields of a ``ModelSpec``."""

GELU = ("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh")
SILU = ("silu", "swish")
RELU = ("relu",)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFile:
    """What a file says, and its name for errors."""

    values: Mapping[str, Any]
    source: str

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value, or the default of the model's type where the file has none."""
        return self.values.get(key, default)

    def required(self, *keys: str) -> Any:
        """Return the first of some values that is there; a file without any of them is refused."""
        for key in keys:
            if self.values.get(key) is not None:
                return self.values[key]
        raise SpecError(f"{self.source} lacks {keys[0]!r}")

    def sizes(self, key: str) -> Sequence[int]:
        """Return a list of positive whole numbers."""
        found = self.required(key)
        if not isinstance(found, list) or not found or not all(type(one) is int and one > 0 for one in found):
            raise SpecError(f"{self.source} has {key} {found!r}", why="a list of positive whole numbers is needed")
        return found

    def one_of(self, key: str, *allowed: tuple[str, ...]) -> str:
        """Return which activation is used, by the first name of its group; others are refused."""
        names = [name for group in allowed for name in group]
        found = self.values.get(key, names[0])
        group = next((group for group in allowed if found in group), None)
        if group is None:
            raise SpecError(
                f"{self.source} uses the activation {found!r}",
                fix=f"supported for {self.values['model_type']}: {', '.join(names)}",
            )
        return group[0]

    def refuse_if(self, *keys: str, why: str = "that is not built here") -> None:
        """Refuse a file that sets one of some features."""
        for key in keys:
            if self.values.get(key):
                raise SpecError(f"{self.source} sets {key}", why=why)

    def refuse_unless(self, **wanted: Any) -> None:
        """Refuse a file that sets a feature to something else."""
        for key, value in wanted.items():
            if self.values.get(key, value) != value:
                text = f"{self.source} sets {key} to {self.values[key]!r}"
                raise SpecError(text, why=f"only {value!r} is built here")

    def one_dropout(self, residual: str, embedding: str, default: float = 0.1) -> Any:
        """Return the share that is dropped of embeddings and sublayers, which has to be one."""
        shares = self.get(residual, default), self.get(embedding, default)
        if shares[0] != shares[1]:
            raise SpecError(
                f"{self.source} drops {shares[0]} of the residual stream and {shares[1]} of the embeddings",
                why="one share is trained here",
                fix=f"give {residual} and {embedding} the same value",
            )
        return shares[0]


def encoder_fields(config: ConfigFile) -> Fields:
    """Return the sizes that most types call alike."""
    return {
        "layers": config.required("num_hidden_layers"),
        "hidden": config.required("hidden_size"),
        "heads": config.required("num_attention_heads"),
        "ffn_hidden": config.required("intermediate_size"),
    }


def with_variant(fields: Fields, **variant: Any) -> Fields:
    """Return fields with what sets the model apart, as far as it does."""
    given = {name: value for name, value in variant.items() if value not in (None, False)}
    return {**fields, "variant": {**fields.get("variant", {}), **given}} if given else fields
