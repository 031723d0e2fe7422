"""Which rotary embedding a drafter was trained with.

Drafter configs are often copied from their target, and multimodal or partially rotating targets
leave fields behind (``partial_rotary_factor``, ``mrope_section``) that some trainers honoured and
others, the reference implementation among them, ignored. Such a config does not say how wide the
drafter rotates unless ``rope_dim`` does, so it is refused by name instead of guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dflash_sglang.config.fields import ConfigError, Fields

# Parameters beside theta and type that each kind needs (True) or may have (False); the formulas are
# those of transformers' ROPE_INIT_FUNCTIONS.
SCALINGS: Mapping[str, Mapping[str, bool]] = {
    "default": {},
    "linear": {"factor": True},
    "dynamic": {"factor": True},
    "yarn": {
        "factor": True,
        "original_max_position_embeddings": False,
        "attention_factor": False,
        "beta_fast": False,
        "beta_slow": False,
        "mscale": False,
        "mscale_all_dim": False,
        "truncate": False,
    },
    "llama3": {
        "factor": True,
        "low_freq_factor": True,
        "high_freq_factor": True,
        "original_max_position_embeddings": False,
    },
}
# A drafter's positions are one-dimensional; there all M-RoPE sections turn by the same angle.
_MROPE_KEYS = ("mrope_section", "mrope_interleaved")
_LAYOUT_KEYS = {"rope_is_neox_style": True, "is_neox_style": True, "rope_interleaved": False}
_WIDTH_KEYS = ("rope_dim", "partial_rotary_factor")


@dataclass(frozen=True)
class RopeConfig:
    """Rotary embedding over the first ``rotary_dim`` channels of a head (rotate-half layout)."""

    theta: float
    rotary_dim: int
    max_positions: int
    kind: str = "default"  # a key of SCALINGS
    scaling: Mapping[str, Any] | None = None  # the kind's parameters; None for the default kind

    @classmethod
    def from_fields(cls, fields: Fields, head_dim: int) -> RopeConfig:
        """Read ``rope_parameters`` or ``rope_scaling`` and ``rope_theta``. Raises ConfigError."""
        parameters = _parameters(fields)
        _refuse_interleaved(fields, parameters)
        theta = _agree(fields, parameters, "rope_theta")
        if theta is None:
            theta = 10_000.0  # transformers' default_theta
        if isinstance(theta, bool) or not isinstance(theta, int | float) or theta <= 1:
            raise ConfigError(f"rope_theta must be a number above 1, got {theta!r}.")
        kind = parameters.get("rope_type", parameters.get("type", "default"))
        kind = "default" if kind == "mrope" else kind
        scaling = _scaling(fields, parameters, kind)
        return cls(
            theta=float(theta),
            rotary_dim=_rotary_dim(fields, parameters, head_dim),
            max_positions=fields.integer("max_position_embeddings", default=32768),
            kind=kind,
            scaling=scaling or None,
        )

    def to_dict(self, head_dim: int) -> dict[str, Any]:
        """The rope part of ``config.json``; the width is stated when it is not the whole head."""
        parameters = {"rope_type": self.kind, "rope_theta": self.theta, **(self.scaling or {})}
        if self.rotary_dim != head_dim:
            parameters["rope_dim"] = self.rotary_dim
        return {"max_position_embeddings": self.max_positions, "rope_parameters": parameters}


def _parameters(fields: Fields) -> Mapping[str, Any]:
    old, new = fields.get("rope_scaling"), fields.get("rope_parameters")
    if old is not None and new is not None and old != new:
        raise ConfigError(
            f"rope_scaling and rope_parameters disagree: {old!r} against {new!r}; give one of them."
        )
    parameters = new if new is not None else old if old is not None else {}
    if not isinstance(parameters, Mapping):
        raise ConfigError(f"rope_parameters must be an object, got {parameters!r}.")
    for key, value in parameters.items():
        if isinstance(value, Mapping):
            raise ConfigError(
                f"rope_parameters[{key!r}] gives one layer type its own rotation, which a drafter "
                "with one rotary embedding for all layers does not support."
            )
    return parameters


def _refuse_interleaved(fields: Fields, parameters: Mapping[str, Any]) -> None:
    for key, rotate_half in _LAYOUT_KEYS.items():
        value = _agree(fields, parameters, key)
        if value not in (None, rotate_half):
            raise ConfigError(f"{key}={value!r} (interleaved rotary layout) is not supported.")


def _agree(fields: Fields, parameters: Mapping[str, Any], key: str) -> Any:
    """A value that may stand inside the rope parameters or beside them."""
    inside, beside = parameters.get(key), fields.get(key)
    if inside is not None and beside is not None and inside != beside:
        raise ConfigError(
            f"{key} stands twice with different values: {inside!r} in the rope parameters and "
            f"{beside!r} beside them."
        )
    return inside if inside is not None else beside


def _scaling(fields: Fields, parameters: Mapping[str, Any], kind: Any) -> dict[str, Any]:
    if kind not in SCALINGS:
        raise ConfigError(f"rope_type must be one of {', '.join(SCALINGS)}, got {kind!r}.")
    known = SCALINGS[kind]
    scaling = {key: parameters[key] for key in known if parameters.get(key) is not None}
    length = "original_max_position_embeddings"
    if length in known and (value := _agree(fields, parameters, length)) is not None:
        scaling[length] = value  # some configs state it beside the rope parameters
    missing = [key for key, required in known.items() if required and key not in scaling]
    if missing:
        raise ConfigError(f"rope_type={kind!r} needs {', '.join(missing)}.")
    read = {"rope_theta", "rope_type", "type", *_MROPE_KEYS, *_LAYOUT_KEYS, *_WIDTH_KEYS, *known}
    unknown = sorted(
        key for key, value in parameters.items() if key not in read and value is not None
    )
    if unknown:
        raise ConfigError(f"rope_type={kind!r} does not know {', '.join(unknown)}.")
    for key, value in scaling.items():
        if key != "truncate" and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise ConfigError(f"rope parameter {key} must be a number, got {value!r}.")
    return scaling


def _rotary_dim(fields: Fields, parameters: Mapping[str, Any], head_dim: int) -> int:
    declared = _agree(fields, parameters, "rope_dim")
    if declared is not None:
        # Stated outright, it is the trained width, whatever was copied along from the target.
        if type(declared) is not int or declared % 2 or not 0 < declared <= head_dim:
            raise ConfigError(
                f"rope_dim must be even and 2 to head_dim={head_dim}, got {declared!r}."
            )
        return declared
    factor = _agree(fields, parameters, "partial_rotary_factor")
    if factor is not None and factor != 1:
        raise ConfigError(
            f"partial_rotary_factor={factor!r} leaves open whether the drafter rotates all "
            f"head_dim={head_dim} channels, as the reference does, or only that part; state the "
            "trained width as rope_dim in rope_parameters."
        )
    section = _agree(fields, parameters, "mrope_section")
    if section is not None and 2 * sum(section) != head_dim:
        raise ConfigError(
            f"mrope_section={section!r} covers {2 * sum(section)} channels, but "
            f"head_dim={head_dim}; state the trained width as rope_dim in rope_parameters."
        )
    if head_dim % 2:
        raise ConfigError(f"head_dim={head_dim} must be even to be rotated.")
    return head_dim
