"""What is asked: inputs as users give them, their sources and targets, and batches of them.

Knows neither engines nor models.
"""
