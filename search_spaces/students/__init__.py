"""Students of plain networks that teach block by block: of each block of a teacher, a space."""
