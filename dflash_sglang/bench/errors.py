"""What stops a measurement, in sentences that say what to do next."""


class BenchError(ValueError):
    """A run that was asked for and cannot be measured, or a report that cannot be drawn."""


class ProvenanceError(BenchError):
    """A figure without an origin, or figures of different origins that would look alike."""
