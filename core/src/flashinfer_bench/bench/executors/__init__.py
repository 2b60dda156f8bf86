"""Starting candidates and talking to them: the only way from the judge to a solution."""
