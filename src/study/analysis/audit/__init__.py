"""The audit: which of the paper's numbers can be reproduced, which cannot, and why."""
