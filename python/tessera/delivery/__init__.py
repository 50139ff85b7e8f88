"""Delivery of results from a scheduler, where requests finish, to the main process, which answers them."""
