"""Tool catalogues: published collections and live servers, in one form."""
