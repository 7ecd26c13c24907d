"""All SQL. Functions take a session and never commit; the edge commits."""
