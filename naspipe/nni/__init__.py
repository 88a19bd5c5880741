"""Model spaces of NNI 3.0 as naspipe spaces; the only package that imports ``nni``."""
