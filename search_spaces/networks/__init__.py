"""Plain networks as spaces of one candidate per block: of images here, of text in ``bert``."""
