"""What the engine learns while it serves. Pure tensors, any device; output never depends on it."""
