"""Training of DFlash 2 drafters: capture of a target's text and features, trainer, evaluation."""
