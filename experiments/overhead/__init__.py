"""Cost of a decoding round beside its forward passes, as ratios with bounds."""
