"""Commands of operators and of a project's administrators."""
