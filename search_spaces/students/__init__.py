"""Students of plain networks for blockwise distillation: a space for each block of a teacher."""
