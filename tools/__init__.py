"""What writes files: the schemas, the policy pages."""
