"""`tidegate doctor`: a line for each thing Tidegate needs, and what to do if it is missing."""
