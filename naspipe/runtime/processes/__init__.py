"""Outside the stages: processes started, watched and ended together, on one host or several."""
