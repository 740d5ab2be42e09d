"""Probes of the audit: systems that show how predictable the labels are, and from what."""
