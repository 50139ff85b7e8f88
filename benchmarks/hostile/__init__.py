"""Hostile bodies for every route that takes one, and the campaign that sends them: ``make fuzz``."""
