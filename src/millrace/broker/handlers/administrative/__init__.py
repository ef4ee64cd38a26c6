"""Requests that change something for others: what the audit tells of them."""
