"""Stage processes: tensors, messages, files. Effects only; every decision is a controller's."""
