"""Requests that would end SGLang's scheduler, or a neighbour's answer."""
