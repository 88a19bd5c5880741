"""Networks that learn without labels from two views of each image: BYOL and MoCo-v3."""
