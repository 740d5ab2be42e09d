"""From runs to numbers: ranking, metrics, statistics, records, and the check against expected scores."""
