"""What is known of layers without memory for their tensors: sizes, shapes, structure, habits."""
