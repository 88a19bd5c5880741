"""NNI's experiments by naspipe: what their objects stand for, and the class; no new mechanism."""
