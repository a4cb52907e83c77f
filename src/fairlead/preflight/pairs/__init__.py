"""The pair phase: which paths there are, who tests whom, and the part of the fabric that explains what failed."""
