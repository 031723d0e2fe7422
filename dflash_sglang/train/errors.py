"""Errors that a user can cause; each message names what was expected and what came."""


class DataError(ValueError):
    """Prompts, shards or manifests that cannot be used as they are."""


class TargetError(ValueError):
    """A target model that this package cannot read features from."""


class TrainingError(ValueError):
    """Options, drafter and data of a training run that do not fit one another."""
