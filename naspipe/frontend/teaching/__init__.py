"""Who teaches whom: teachers beside a stream, blocks with teachers, and where labels come from."""
