"""The tensors of a pass: segments of autograd, gradients, losses, WRITEs. Decides nothing."""
