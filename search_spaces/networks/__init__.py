"""Plain networks as spaces with one candidate per block: for images here, for text in ``bert``."""
