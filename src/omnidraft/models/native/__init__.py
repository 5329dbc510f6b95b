"""The native step: the forward pass of step.c, with weights in 4 to 8 bits, for small batches on a CPU."""
