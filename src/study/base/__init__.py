"""The ground that every package stands on: errors, files, folders, and the reader of settings."""
