"""NNI experiments in naspipe: the class, and the translation of NNI's objects."""
