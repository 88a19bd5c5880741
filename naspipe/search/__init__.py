"""Finding the best subnet of a trained supernet: strategies, limits and the front."""
